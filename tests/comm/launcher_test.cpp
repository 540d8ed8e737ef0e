#include "reknit/comm/launcher.h"

#include "reknit/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace reknit {
namespace {

using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

std::optional<LaunchedProcess> launched(const Environment& environment) {
  return launched_process([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

Environment with(Environment base, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    base[name] = value;
  }
  return base;
}

const Environment kTorchrun{{"RANK", "5"},
                            {"LOCAL_RANK", "1"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "alpha"},
                            {"MASTER_PORT", "29400"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Environment kHydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Environment kSrun{{"SLURM_PROCID", "5"},
                        {"SLURM_NTASKS", "7"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_NODEID", "1"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_TASKS_PER_NODE", "4,3"},
                        {"SLURM_NODELIST", "node[03-05,7]"},
                        {"SLURM_JOB_ID", "123456"}};

struct Place {
  std::string name;
  Environment environment;
  std::string launcher, host;
  int port, rank, world, local_rank, local_world;
};

void PrintTo(const Place& place, std::ostream* out) {
  *out << place.name;
}

class LauncherPlace : public testing::TestWithParam<Place> {};

TEST_P(LauncherPlace, IsReadFromTheEnvironment) {
  const Place& expected = GetParam();
  const auto place = launched(expected.environment);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->launcher, expected.launcher);
  EXPECT_EQ(place->rendezvous.host, expected.host);
  if (expected.port != 0) {
    EXPECT_EQ(place->rendezvous.port, expected.port);
  }
  EXPECT_GE(place->rendezvous.port, 1024);
  EXPECT_LT(place->rendezvous.port, 32768);
  EXPECT_EQ(place->rendezvous.rank, expected.rank);
  EXPECT_EQ(place->rendezvous.world, expected.world);
  EXPECT_EQ(place->local_rank, expected.local_rank);
  EXPECT_EQ(place->local_world, expected.local_world);
}

const Environment kMaster{{"MASTER_ADDR", "beta"}, {"MASTER_PORT", "29777"}};

INSTANTIATE_TEST_SUITE_P(
    Launchers, LauncherPlace,
    testing::Values(
        Place{"Torchrun", kTorchrun, "torchrun", "alpha", 29400, 5, 8, 1, 4},
        Place{"TorchrunGoesBeforeSrun", with(kSrun, kTorchrun), "torchrun", "alpha", 29400, 5, 8, 1,
              4},
        Place{"OpenMpiOnOneNode", kOpenMpi, "mpirun", "127.0.0.1", 29500, 1, 2, 1, 2},
        Place{"OpenMpiWithJob", with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "4294901761"}}),
              "mpirun", "127.0.0.1", 0, 1, 2, 1, 2},
        Place{"OpenMpiWithAddress", with(with(kOpenMpi, kMaster), {{"OMPI_COMM_WORLD_SIZE", "64"}}),
              "mpirun", "beta", 29777, 1, 64, 1, 2},
        Place{"OpenMpiGoesBeforeSrun", with(kSrun, kOpenMpi), "mpirun", "127.0.0.1", 0, 1, 2, 1, 2},
        Place{"Hydra", kHydra, "mpirun", "127.0.0.1", 29500, 1, 2, 1, 2},
        Place{"Srun", kSrun, "srun", "node03", 0, 5, 7, 1, 3},
        Place{"SrunWithPmi", with(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}), "srun", "node03",
              0, 5, 7, 1, 3},
        Place{"SrunEqualNodes", with(kSrun, {{"SLURM_TASKS_PER_NODE", "3(x2),1"}}), "srun",
              "node03", 0, 5, 7, 1, 3},
        Place{"SrunWithAddress", with(kSrun, kMaster), "srun", "beta", 29777, 5, 7, 1, 3},
        Place{"SrunPlainHosts", with(kSrun, {{"SLURM_NODELIST", "a1,b[2-3]"}}), "srun", "a1", 0, 5,
              7, 1, 3},
        Place{"SrunTasksPerNode",
              with(kSrun, {{"SLURM_TASKS_PER_NODE", ""},
                           {"SLURM_NTASKS_PER_NODE", "4"},
                           {"SLURM_NTASKS", "8"}}),
              "srun", "node03", 0, 5, 8, 1, 4},
        Place{"SrunTwoBrackets", with(kSrun, {{"SLURM_NODELIST", "r[1-2]n[07,09]-ib,x"}}), "srun",
              "r1n07-ib", 0, 5, 7, 1, 3}),
    [](const auto& info) { return info.param.name; });

TEST(Launcher, NoneIsFoundWhereNobodyLaunched) {
  EXPECT_FALSE(launched({}).has_value());
  EXPECT_FALSE(launched({{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "29500"}}).has_value());
  EXPECT_FALSE(launched({{"SLURM_JOB_ID", "7"}, {"SLURM_NODELIST", "n1"}}).has_value());
}

TEST(Launcher, AWorldOfOneIsNoLauncher) {
  EXPECT_FALSE(launched({{"WORLD_SIZE", "1"}}).has_value());
  EXPECT_FALSE(launched(with(kTorchrun, {{"WORLD_SIZE", "1"},
                                         {"RANK", "0"},
                                         {"LOCAL_RANK", "0"},
                                         {"LOCAL_WORLD_SIZE", "1"}}))
                   .has_value());
  EXPECT_FALSE(launched({{"OMPI_COMM_WORLD_SIZE", "1"}}).has_value());
  EXPECT_FALSE(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).has_value());
}

TEST(Launcher, ABatchScriptIsNotATaskOfItsJob) {
  Environment batch = with(kSrun, {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}});
  EXPECT_TRUE(launched(batch).has_value());
  batch.erase("SLURM_STEP_ID");
  EXPECT_FALSE(launched(batch).has_value());
}

TEST(Launcher, TheAgentsStoreCarriesTheRestartCount) {
  const auto place = launched(with(
      kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_TRUE(place->rendezvous.agent_store);
  EXPECT_EQ(place->rendezvous.key_prefix, "restart2");
  EXPECT_FALSE(launched(kTorchrun)->rendezvous.agent_store);
}

TEST(Launcher, JobsOnOneHostMeetAtDifferentPorts) {
  const auto port = [](const char* job) {
    return launched(with(kSrun, {{"SLURM_JOB_ID", job}}))->rendezvous.port;
  };
  EXPECT_NE(port("123456"), port("123457"));
  EXPECT_EQ(port("123456"), port("123456"));
}

struct Mistake {
  std::string name;
  Environment environment;
  std::vector<std::string> named;
};

void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name;
}

class LauncherMistake : public testing::TestWithParam<Mistake> {};

TEST_P(LauncherMistake, IsRefusedWithTheVariablesNamed) {
  try {
    launched(GetParam().environment);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    for (const std::string& name : GetParam().named) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, LauncherMistake,
    testing::Values(
        Mistake{"RankAlone", {{"RANK", "1"}}, {"RANK=1", "WORLD_SIZE", "MASTER_ADDR"}},
        Mistake{"WorldAlone", {{"WORLD_SIZE", "4"}}, {"WORLD_SIZE=4", "RANK", "MASTER_PORT"}},
        Mistake{"NoPort", with(kTorchrun, {{"MASTER_PORT", ""}}), {"without MASTER_PORT"}},
        Mistake{"RankOutsideWorld", with(kTorchrun, {{"RANK", "8"}}), {"RANK=8", "WORLD_SIZE=8"}},
        Mistake{"RankInAWorldOfOne",
                with(kTorchrun, {{"WORLD_SIZE", "1"}}),
                {"RANK=5", "WORLD_SIZE=1"}},
        Mistake{"LocalWorldAboveWorld",
                with(kTorchrun, {{"LOCAL_WORLD_SIZE", "16"}}),
                {"LOCAL_WORLD_SIZE=16", "WORLD_SIZE"}},
        Mistake{"NoNumber", with(kTorchrun, {{"RANK", "five"}}), {"RANK=five"}},
        Mistake{"Negative", with(kTorchrun, {{"RANK", "-1"}}), {"RANK=-1"}},
        Mistake{"BadPort", with(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT=70000"}},
        Mistake{"OpenMpiPartly",
                {{"OMPI_COMM_WORLD_SIZE", "4"}},
                {"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK"}},
        Mistake{"OpenMpiOnNodesWithoutAddress",
                with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}}),
                {"MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE"}},
        Mistake{"SrunPartly", {{"SLURM_PROCID", "1"}}, {"SLURM_PROCID=1", "SLURM_NTASKS"}},
        Mistake{"SrunNoHosts", with(kSrun, {{"SLURM_NODELIST", ""}}), {"SLURM_NODELIST"}},
        Mistake{"SrunUnknownNode",
                with(kSrun, {{"SLURM_NODEID", "2"}}),
                {"SLURM_TASKS_PER_NODE=4,3", "node 2"}},
        Mistake{"SrunOpenBracket", with(kSrun, {{"SLURM_NODELIST", "n[1-2"}}), {"n[1-2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace reknit
