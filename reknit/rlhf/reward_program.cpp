// A program as reward: a child process, lines of JSON through two pipes.
#include "reknit/base/broken_pipe.h"
#include "reknit/base/error.h"
#include "reknit/rlhf/reward.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kFarewell = 1s;  ///< for the program to end after its input has
constexpr size_t kLongestLine = 1 << 20;
constexpr size_t kShownBytes = 80;  ///< of a line that is refused

/// A descriptor and its end.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }

  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) {
      close(std::exchange(fd_, -1));
    }
  }

 private:
  int fd_;
};

std::string request_line(const JudgedAnswer& answer, size_t index, size_t count) {
  nlohmann::json line = nlohmann::json::parse(answer.other, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) {
    line = nlohmann::json::object();
  }
  line["prompt"] = answer.prompt;
  line["completion"] = answer.completion;
  line["prompt_tokens"] = answer.prompt_tokens;
  line["tokens"] = answer.tokens;
  line["finish"] = answer.ended ? "eos" : "length";
  line["index"] = index;
  line["count"] = count;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

class ProgramReward : public Reward {
 public:
  ProgramReward(const std::vector<std::string>& arguments, std::string name,
                std::chrono::milliseconds timeout)
      : name_(std::move(name)), timeout_(timeout) {
    start(arguments);
  }
  ~ProgramReward() override;

  std::vector<double> score(std::span<const JudgedAnswer> answers) override;

 private:
  void start(const std::vector<std::string>& arguments);
  void exchange_some(std::string_view& unsent, size_t done, size_t count);
  void require_nothing_more();
  double parse(const std::string& line) const;
  [[noreturn]] void report_end(size_t done, size_t count);
  bool ended_within(Clock::duration limit);

  const std::string name_;
  const std::chrono::milliseconds timeout_;
  pid_t pid_ = -1;
  int status_ = 0;  ///< once it has ended
  Descriptor to_, from_;
  std::string received_;  ///< not yet a line
};

/// The end of the child's side is closed on exec and by us.
std::array<int, 2> make_pipe(const std::string& name) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw CommError(str(name, " cannot be started: ", std::strerror(errno)),
                    "raise the limit on open files (ulimit -n)");
  }
  return ends;
}

void ProgramReward::start(const std::vector<std::string>& arguments) {
  const auto in = make_pipe(name_);
  const Descriptor child_in(in[0]);
  to_ = Descriptor(in[1]);
  const auto out = make_pipe(name_);
  const Descriptor child_out(out[1]);
  from_ = Descriptor(out[0]);
  fcntl(to_.get(), F_SETFL, O_NONBLOCK);
  fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
  // A Ctrl-C lets the step end first, for which the program is needed: its own process group.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}) {
    sigaddset(&signals, number);
  }
  posix_spawnattr_setsigdefault(&attributes, &signals);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const int error = posix_spawnp(&pid_, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw CommError(str(name_, " cannot be started: ", arguments[0], ": ", std::strerror(error)),
                    "check that it is installed and in PATH");
  }
}

ProgramReward::~ProgramReward() {
  to_.reset();
  if (!ended_within(kFarewell)) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
  }
}

bool ProgramReward::ended_within(Clock::duration limit) {
  const auto deadline = Clock::now() + limit;
  while (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(5ms);
  }
  pid_ = -1;
  return true;
}

std::vector<double> ProgramReward::score(std::span<const JudgedAnswer> answers) {
  std::string request;
  for (size_t i = 0; i < answers.size(); ++i) {
    request += request_line(answers[i], i, answers.size());
  }
  const WithoutSigpipe quiet;
  require_nothing_more();
  std::string_view unsent = request;
  std::vector<double> scores;
  while (scores.size() < answers.size()) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos || received_.size() > kLongestLine) {
      scores.push_back(parse(received_.substr(0, end)));
      received_.erase(0, end + 1);
    } else {
      exchange_some(unsent, scores.size(), answers.size());
    }
  }
  require_nothing_more();
  return scores;
}

/// A line too many would become the reward of another answer.
void ProgramReward::require_nothing_more() {
  std::array<char, 4096> bytes{};
  const ssize_t got = read(from_.get(), bytes.data(), bytes.size());
  received_.append(bytes.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (!received_.empty()) {
    throw InputError(
        str(name_, " printed more than a line for each answer: \"",
            received_.substr(0, std::min(kShownBytes, received_.find('\n'))), "\" is left over"),
        "it has to print rewards only; other output belongs on standard error");
  }
}

/// Waits until the program takes or gives something.
void ProgramReward::exchange_some(std::string_view& unsent, size_t done, size_t count) {
  std::array<pollfd, 2> ends{
      {{from_.get(), POLLIN, 0}, {unsent.empty() ? -1 : to_.get(), POLLOUT, 0}}};
  const int ready = poll(ends.data(), ends.size(), static_cast<int>(timeout_.count()));
  if (ready == 0) {
    throw CommError(str(name_, " was silent for ", static_cast<double>(timeout_.count()) / 1000,
                        " s after ", done, " of ", count, " answers"),
                    "it has to print and flush a line for each line it reads; --timeout sets the "
                    "limit");
  }
  if (ends[0].revents != 0) {
    std::array<char, 65536> bytes{};
    const ssize_t got = read(from_.get(), bytes.data(), bytes.size());
    if (got == 0) {
      report_end(done, count);
    }
    received_.append(bytes.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  } else if (ends[1].revents != 0) {
    const ssize_t taken = write(to_.get(), unsent.data(), unsent.size());
    if (taken < 0 && errno == EPIPE) {
      report_end(done, count);
    }
    unsent.remove_prefix(static_cast<size_t>(std::max<ssize_t>(taken, 0)));
  }
}

double ProgramReward::parse(const std::string& line) const {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto* number = json.is_object() && json.contains("reward") ? &json.at("reward") : &json;
  if (!number->is_number() || !std::isfinite(number->get<double>())) {
    throw InputError(str(name_, " printed \"", line.substr(0, kShownBytes),
                         line.size() > kShownBytes ? "..." : "", "\", which is no reward"),
                     "it has to print a number or {\"reward\": number} for each line it reads, and "
                     "nothing else on standard output");
  }
  return number->get<double>();
}

void ProgramReward::report_end(size_t done, size_t count) {
  to_.reset();
  std::string how = "closed its output";
  if (ended_within(kFarewell)) {
    how = WIFSIGNALED(status_) ? str("was ended by signal ", WTERMSIG(status_))
                               : str("ended with exit code ", WEXITSTATUS(status_));
  }
  throw CommError(str(name_, " ", how, " after ", done, " of ", count, " answers"),
                  "what it printed on standard error says more; it has to go on until its input "
                  "ends");
}

constexpr const char* kPythonShim = R"(
import importlib.util, json, os, sys

path, name = sys.argv[1:]
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the function prints is no reward
sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
spec = importlib.util.spec_from_file_location("reward_function", path)
module = importlib.util.module_from_spec(spec)
sys.modules["reward_function"] = module
spec.loader.exec_module(module)
function = getattr(module, name)
rows = []
for line in sys.stdin:
    row = json.loads(line)
    count = row.pop("count")
    row.pop("index")
    rows.append(row)
    if len(rows) == count:
        rewards = [float(reward) for reward in function(rows)]
        if len(rewards) != count:
            sys.exit(f"{name} returned {len(rewards)} rewards for {count} rows")
        answers.write("".join(f"{reward!r}\n" for reward in rewards))
        answers.flush()
        rows = []
)";

}  // namespace

std::unique_ptr<Reward> make_program_reward(const std::vector<std::string>& arguments,
                                            const std::string& name,
                                            std::chrono::milliseconds timeout) {
  return std::make_unique<ProgramReward>(arguments, name, timeout);
}

std::vector<std::string> shell_program(const std::string& command) {
  return {"/bin/sh", "-c", command};
}

std::vector<std::string> python_program(const std::string& python, const std::string& file,
                                        const std::string& function) {
  return {python, "-c", kPythonShim, file, function};
}

}  // namespace reknit
