#include "tests/support/processes.h"

#include "reknit/base/error.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

extern char** environ;

namespace reknit::test {
namespace {

int free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool bound = bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(listener);
  require<StateError>(bound, "no free port on this machine");
  return ntohs(address.sin_port);
}

pid_t start(int rank, int size, int port, const std::string& output) {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = str("--gtest_filter=", info->test_suite_name(), ".", info->name());
  std::vector<std::string> variables{str("REKNIT_TEST_RANK=", rank),
                                     str("REKNIT_TEST_WORLD=", size),
                                     str("REKNIT_TEST_PORT=", port), "OMP_NUM_THREADS=1"};
  std::vector<char*> environment;
  for (std::string& variable : variables) {
    environment.push_back(variable.data());
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe";
  std::string argument = filter;
  char* arguments[] = {program.data(), argument.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int failed =
      posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  require<StateError>(failed == 0, "cannot start ", program);
  return child;
}

}  // namespace

std::optional<Rendezvous> process_place() {
  const char* rank = std::getenv("REKNIT_TEST_RANK");
  if (rank == nullptr) {
    return std::nullopt;
  }
  return Rendezvous{.host = "127.0.0.1",
                    .port = std::atoi(std::getenv("REKNIT_TEST_PORT")),
                    .rank = std::atoi(rank),
                    .world = std::atoi(std::getenv("REKNIT_TEST_WORLD"))};
}

std::vector<int> run_in_processes(int size) {
  const int port = free_port();
  std::vector<pid_t> children;
  std::vector<std::string> outputs;
  for (int rank = 0; rank < size; ++rank) {
    outputs.push_back(str(testing::TempDir(), "reknit-", getpid(), "-", rank, ".txt"));
    children.push_back(start(rank, size, port, outputs.back()));
  }
  std::vector<int> codes;
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    if (codes.back() != 0 && codes.back() != 128 + SIGKILL) {
      std::cerr << "process of rank " << rank << " ended with " << codes.back() << ":\n"
                << std::ifstream(outputs[rank]).rdbuf();
    }
    unlink(outputs[rank].c_str());
  }
  return codes;
}

}  // namespace reknit::test
