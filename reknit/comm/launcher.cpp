#include "reknit/comm/launcher.h"

#include "reknit/base/error.h"

#include <charconv>
#include <cstdlib>

namespace reknit {
namespace {

constexpr const char* kHelp =
    "start all processes with torchrun --no-python, mpirun or srun, or unset these variables";
constexpr int kDefaultPort = 29500;

/// The environment, with typed reads that name the variable in their errors.
class Variables {
 public:
  explicit Variables(const std::function<const char*(const char*)>& get) : get_(get) {}

  std::optional<std::string> text(const std::string& name) const {
    const char* value = get_(name.c_str());
    if (value == nullptr || *value == '\0') {
      return std::nullopt;
    }
    return value;
  }

  std::optional<int> number(const std::string& name) const {
    const auto value = text(name);
    if (!value) {
      return std::nullopt;
    }
    int result = -1;
    const char* end = value->data() + value->size();
    const auto [stopped, failed] = std::from_chars(value->data(), end, result);
    if (failed != std::errc() || stopped != end || result < 0) {
      throw UsageError(str("the launcher's ", name, "=", *value, " is not a number"), kHelp);
    }
    return result;
  }

  bool any(const std::vector<std::string>& names) const { return !listed(names, true).empty(); }

  /// The value of the first of `names` that is set.
  std::optional<std::string> first(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      if (auto value = text(name)) {
        return value;
      }
    }
    return std::nullopt;
  }

  /// Throws unless all of `names` are set.
  void require_all(const std::vector<std::string>& names) const {
    const std::string missing = listed(names, false);
    if (!missing.empty()) {
      throw UsageError(str("the launcher's variables are partly set: ", listed(names, true),
                           " without ", missing),
                       kHelp);
    }
  }

 private:
  /// "RANK=1, WORLD_SIZE=4" of those that are set, or the names of those that are not.
  std::string listed(const std::vector<std::string>& names, bool set) const {
    std::string result;
    for (const std::string& name : names) {
      const auto value = text(name);
      if (value.has_value() == set) {
        result += (result.empty() ? "" : ", ") + name + (set ? "=" + *value : "");
      }
    }
    return result;
  }

  const std::function<const char*(const char*)>& get_;
};

/// The names under which a launcher says the four numbers.
struct Names {
  std::string rank, world, local_rank, local_world;
};

void require_inside(const std::string& index_name, int index, const std::string& count_name,
                    int count) {
  if (index >= count) {
    throw UsageError(str("the launcher's variables contradict each other: ", index_name, "=", index,
                         " and ", count_name, "=", count),
                     kHelp);
  }
}

LaunchedProcess read_place(const Variables& variables, const std::string& launcher,
                           const Names& names) {
  LaunchedProcess place{.local_rank = *variables.number(names.local_rank),
                        .local_world = *variables.number(names.local_world),
                        .launcher = launcher};
  place.rendezvous.rank = *variables.number(names.rank);
  place.rendezvous.world = *variables.number(names.world);
  require_inside(names.rank, place.rendezvous.rank, names.world, place.rendezvous.world);
  require_inside(names.local_rank, place.local_rank, names.local_world, place.local_world);
  require_inside(names.local_world, place.local_world, names.world, place.rendezvous.world + 1);
  return place;
}

/// MASTER_ADDR and MASTER_PORT, both or neither.
bool read_master(const Variables& variables, Rendezvous& meet) {
  const std::vector<std::string> names{"MASTER_ADDR", "MASTER_PORT"};
  if (!variables.any(names)) {
    return false;
  }
  variables.require_all(names);
  meet.host = *variables.text("MASTER_ADDR");
  meet.port = *variables.number("MASTER_PORT");
  require<UsageError>(meet.port > 0 && meet.port < 65536, "the launcher's MASTER_PORT=", meet.port,
                      " is not a port");
  return true;
}

/// A port below the ephemeral ones that all processes of a job agree on.
int port_of_job(const std::string& job) {
  uint64_t hash = 0;
  for (const char c : job) {
    hash = hash * 31 + static_cast<unsigned char>(c);
  }
  return job.empty() ? kDefaultPort : 10000 + static_cast<int>(hash % 20000);
}

std::optional<LaunchedProcess> read_torchrun(const Variables& variables) {
  const Names names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  const std::vector<std::string> four{names.rank, names.local_rank, names.world, names.local_world};
  // The address alone is what users set beside mpirun and srun.
  if (!variables.any(four)) {
    return std::nullopt;
  }
  if (variables.number(names.world) == 1 && variables.number(names.rank).value_or(0) == 0) {
    return LaunchedProcess{};
  }
  variables.require_all(
      {names.rank, names.local_rank, names.world, names.local_world, "MASTER_ADDR", "MASTER_PORT"});
  LaunchedProcess place = read_place(variables, "torchrun", names);
  read_master(variables, place.rendezvous);
  if (variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    place.rendezvous.agent_store = true;
    place.rendezvous.key_prefix =
        str("restart", variables.number("TORCHELASTIC_RESTART_COUNT").value_or(0));
  }
  return place;
}

/// MPI says who is who but not where to meet: the address comes beside it or, on one
/// node, is this machine.
std::optional<LaunchedProcess> read_mpi(const Variables& variables, const Names& names) {
  if (!variables.any({names.rank, names.world})) {
    return std::nullopt;
  }
  if (variables.number(names.world) == 1) {
    return LaunchedProcess{};
  }
  variables.require_all({names.rank, names.world, names.local_rank, names.local_world});
  LaunchedProcess place = read_place(variables, "mpirun", names);
  if (read_master(variables, place.rendezvous)) {
    return place;
  }
  if (place.local_world < place.rendezvous.world) {
    throw UsageError(str("mpirun started ", place.rendezvous.world, " processes (", names.world,
                         ") on several nodes without MASTER_ADDR and MASTER_PORT"),
                     "pass both to all processes, e.g. mpirun -x MASTER_ADDR=HOST "
                     "-x MASTER_PORT=29500 with the first host's name");
  }
  place.rendezvous.host = "127.0.0.1";
  place.rendezvous.port =
      port_of_job(variables.first({"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}).value_or(""));
  return place;
}

/// "4(x2),3" is 4, 4 and 3 tasks: those of node `node`.
int tasks_of_node(const std::string& counts, int node) {
  std::istringstream text(counts);
  int left = node;
  for (int tasks = 0; text >> tasks;) {
    int times = 1;
    char mark = 0;
    if (text.peek() == '(') {
      text >> mark >> mark >> times >> mark;
    }
    if (left < times) {
      return tasks;
    }
    left -= times;
    text >> mark;
  }
  throw UsageError(
      str("the launcher's SLURM_TASKS_PER_NODE=", counts, " says nothing of node ", node), kHelp);
}

/// The first host of a list such as "rack1,rack[2-5]" or "node[03-05,7]".
std::string first_host(const std::string& hosts) {
  std::string first;
  for (size_t i = 0; i < hosts.size() && hosts[i] != ','; ++i) {
    if (hosts[i] != '[') {
      first += hosts[i];
      continue;
    }
    const size_t close = hosts.find(']', i);
    if (close == std::string::npos) {
      throw UsageError(str("the launcher's SLURM_NODELIST=", hosts, " has no closing bracket"),
                       kHelp);
    }
    first += hosts.substr(i + 1, hosts.find_first_of("-,]", i) - i - 1);
    i = close;
  }
  return first;
}

std::optional<LaunchedProcess> read_srun(const Variables& variables) {
  const bool batch_script =
      variables.text("ENVIRONMENT") == "BATCH" && !variables.any({"SLURM_STEP_ID", "SLURM_STEPID"});
  if (batch_script || !variables.text("SLURM_PROCID")) {
    return std::nullopt;
  }
  if (variables.number("SLURM_NTASKS") == 1) {
    return LaunchedProcess{};
  }
  variables.require_all({"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"});
  const auto tasks = variables.first({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const auto tasks_everywhere = tasks ? std::nullopt : variables.number("SLURM_NTASKS_PER_NODE");
  const auto hosts =
      variables.first({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const auto job = variables.first({"SLURM_JOB_ID", "SLURM_JOBID"});
  if (!tasks && !tasks_everywhere) {
    variables.require_all({"SLURM_PROCID", "SLURM_TASKS_PER_NODE"});
  }
  LaunchedProcess place{
      .local_rank = *variables.number("SLURM_LOCALID"),
      .local_world = tasks ? tasks_of_node(*tasks, variables.number("SLURM_NODEID").value_or(0))
                           : *tasks_everywhere,
      .launcher = "srun"};
  place.rendezvous.rank = *variables.number("SLURM_PROCID");
  place.rendezvous.world = *variables.number("SLURM_NTASKS");
  require_inside("SLURM_PROCID", place.rendezvous.rank, "SLURM_NTASKS", place.rendezvous.world);
  const std::string local_name = tasks ? "SLURM_TASKS_PER_NODE" : "SLURM_NTASKS_PER_NODE";
  require_inside("SLURM_LOCALID", place.local_rank, local_name, place.local_world);
  require_inside(local_name, place.local_world, "SLURM_NTASKS", place.rendezvous.world + 1);
  if (!read_master(variables, place.rendezvous)) {
    if (!hosts || !job) {
      variables.require_all({"SLURM_PROCID", "SLURM_NODELIST", "SLURM_JOB_ID"});
    }
    place.rendezvous.host = first_host(*hosts);
    place.rendezvous.port = port_of_job(*job);
  }
  return place;
}

}  // namespace

std::optional<LaunchedProcess> launched_process(
    const std::function<const char*(const char*)>& get) {
  const std::function<const char*(const char*)> environment =
      get ? get : [](const char* name) -> const char* { return std::getenv(name); };
  const Variables variables(environment);
  auto place = read_torchrun(variables);
  if (!place) {
    place = read_mpi(variables, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  }
  // Under srun PMI_ names lack the local ranks, which SLURM_ has.
  if (!place && !variables.text("SLURM_PROCID")) {
    place = read_mpi(variables, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  }
  if (!place) {
    place = read_srun(variables);
  }
  if (!place || place->rendezvous.world == 1) {
    return std::nullopt;
  }
  return place;
}

}  // namespace reknit
