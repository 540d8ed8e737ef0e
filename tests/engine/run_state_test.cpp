// Checkpoints of runs: any placement into any other, continued runs, torn saves.
#include "reknit/engine/run_state.h"

#include "reknit/checkpoint/run_folder.h"
#include "reknit/checkpoint/shards.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/golden.h"
#include "tests/support/toy_run.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

namespace reknit {
namespace {

using namespace testing_support;
using testing::HasSubstr;

const ToyModel kToy = run_toy_model();

using Content = std::map<std::string, at::Tensor>;

/// Tensors put together from their pieces, by "KIND:PARAMETER".
class Pieces {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    const size_t at = name.rfind('@');
    EXPECT_TRUE(pieces_[name.substr(0, at)].emplace(std::stoll(name.substr(at + 1)), tensor).second)
        << name;
  }
  Content whole() const {
    Content whole;
    for (const auto& [key, list] : pieces_) {
      std::vector<at::Tensor> parts;
      int64_t next = 0;
      for (const auto& [offset, tensor] : list) {
        EXPECT_EQ(offset, next) << key;
        next += tensor.numel();
        parts.push_back(tensor);
      }
      whole[key] = at::cat(parts);
    }
    return whole;
  }

 private:
  std::map<std::string, std::map<int64_t, at::Tensor>> pieces_;
};

/// Every saved tensor.
Content assembled(const std::string& checkpoint) {
  Pieces pieces;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") {
      for (const auto& [name, tensor] : read_tensors(entry.path())) {
        pieces.add(name, tensor);
      }
    }
  }
  return pieces.whole();
}

void expect_equal(const Content& a, const Content& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, tensor] : a) {
    ASSERT_TRUE(b.contains(key)) << key;
    EXPECT_TRUE(at::equal(tensor, b.at(key))) << key;
  }
}

double largest_difference(const Content& a, const Content& b) {
  double largest = 0;
  for (const auto& [key, tensor] : a) {
    const at::Tensor difference = tensor.to(at::kDouble) - b.at(key).to(at::kDouble);
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  return largest;
}

// ZeRO 0 to 3 and MiCS over 1 to 4 ranks.
std::vector<RunPlace> places(at::ScalarType dtype) {
  std::vector<RunPlace> all;
  for (const int world : {1, 2, 3, 4}) {
    for (const int stage : {0, 3}) {
      all.push_back({.world = world, .zero_stage = stage, .dtype = dtype});
    }
  }
  all.push_back({.world = 2, .zero_stage = 1, .dtype = dtype});
  all.push_back({.world = 3, .zero_stage = 2, .dtype = dtype, .persistence_threshold = 16});
  all.push_back({.world = 2, .zero_stage = 3, .dtype = dtype, .persistence_threshold = 16});
  all.push_back({.world = 4, .zero_stage = 3, .shard_size = 2, .dtype = dtype});
  all.push_back({.world = 4, .zero_stage = 3, .shard_size = 1, .dtype = dtype});
  all.push_back({.world = 4, .zero_stage = 3, .dtype = dtype, .nodes = 2});
  return all;
}

void on_nodes(const RunPlace& place, const RankBody& body) {
  on_ranks(place.world, body, patience(), {}, place.nodes);
}

/// Trains `steps` from the toy's initial values or from a checkpoint, then saves in `out`.
std::string train_and_save(const RunPlace& place, const std::string& from, int steps,
                           const std::string& out) {
  std::string saved;
  on_nodes(place, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, place, comm);
    if (from.empty()) {
      load_toy(rank.store(), kToy);
    } else {
      rank.load(from);
    }
    rank.train(steps);
    const std::string path = rank.save(out);
    if (comm->rank() == 0) {
      saved = path;
    }
  });
  return saved;
}

/// Trains likewise; what a save would write, without the disk: as it is before the first
/// step, and after the last.
std::pair<Content, Content> train(const RunPlace& place, const std::string& from, int steps) {
  Pieces before, after;
  std::mutex mutex;
  on_nodes(place, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, place, comm);
    if (from.empty()) {
      load_toy(rank.store(), kToy);
    } else {
      rank.load(from);
    }
    const auto collect = [&](Pieces& pieces) {
      const std::lock_guard lock(mutex);
      const Optimizer& optimizer = rank.trainer().optimizer();
      for (const auto& [name, tensor] : shard_tensors(rank.store(), {&optimizer}, true)) {
        pieces.add(name, tensor.cpu().clone());
      }
    };
    collect(before);
    rank.train(steps);
    collect(after);
  });
  return {before.whole(), after.whole()};
}

class RunStateInto : public testing::TestWithParam<at::ScalarType> {};

TEST_P(RunStateInto, AnyPlacementLoadsWhatAnyOtherSavedAndContinues) {
  const TempFolder out;
  const auto all = places(GetParam());
  const Content uninterrupted = train(all[0], "", 5).second;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "saved on " << all[i]);
    const std::string saved = train_and_save(all[i], "", 3, out / str("save", i));
    const Content content = assembled(saved);
    for (size_t j = 0; j < all.size(); ++j) {
      SCOPED_TRACE(testing::Message() << "loaded on " << all[j]);
      const auto [loaded, continued] = train(all[j], saved, 2);
      expect_equal(content, loaded);
      if (i == j) {
        expect_equal(train(all[i], "", 5).second, continued);
      }
      EXPECT_LE(largest_difference(uninterrupted, continued), fp32_bound(1e-6));
    }
  }
}

TEST(RunState, LoadedAndSavedAtOnceHoldsTheSameFiles) {
  for (const RunPlace& place : {RunPlace{.world = 3}, RunPlace{.world = 2, .zero_stage = 0},
                                RunPlace{.world = 4, .shard_size = 2, .dtype = at::kHalf}}) {
    const TempFolder again;
    const std::string first = train_and_save(place, "", 2, again / "a");
    const std::string second = train_and_save(place, first, 0, again / "b");
    EXPECT_EQ(read_manifest(first).files, read_manifest(second).files);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RunStateInto,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(RunState, WeightsAreTheRoundedMastersOnEveryRank) {
  const TempFolder out;
  const std::string saved = train_and_save({.world = 3, .dtype = at::kBFloat16}, "", 3, out.path());
  const auto content = assembled(saved);
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      ToyRank rank(kToy, {.world = 2, .zero_stage = stage, .dtype = at::kBFloat16}, comm);
      rank.load(saved);
      const auto weights = rank.weights();
      size_t next = 0;
      for (size_t g = 0; g < kToy.groups.size(); ++g) {
        for (size_t p = 0; p < kToy.groups[g].size(); ++p, ++next) {
          const std::string key =
              str(kToy.groups[g][p].trainable ? "master" : "weight", ":g", g, ".p", p);
          if (weights[next].numel() > 0) {
            EXPECT_TRUE(at::equal(weights[next].reshape(-1), content.at(key).to(at::kBFloat16)))
                << key << " stage " << stage;
          }
        }
      }
    });
  }
}

TEST(RunState, AStoreWithoutTrainingTakesWeightsFromATrainedOne) {
  const TempFolder out;
  const std::string saved = train_and_save({.world = 2, .zero_stage = 2}, "", 3, out.path());
  const auto content = assembled(saved);
  on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 3, .training = false}, comm);
    rank.load(saved);
    EXPECT_TRUE(at::equal(rank.weights()[0].reshape(-1), content.at("master:g0.p0")));
  });
}

TEST(RunState, ReplicasAreWrittenOnceAndInEqualParts) {
  const TempFolder out;
  const auto names_of = [&](const RunPlace& place, const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(train_and_save(place, "", 1, folder))) {
      names.insert(entry.path().filename().string());
    }
    return names;
  };
  const std::set<std::string> two{"complete.json", "state.json", "toy.00000.safetensors",
                                  "toy.00001.safetensors"};
  EXPECT_EQ(names_of({.world = 4, .zero_stage = 3, .shard_size = 2}, out / "mics"), two);
  EXPECT_EQ(names_of({.world = 2, .zero_stage = 0}, out / "zero0"), two);
  const auto bytes = [&](const std::string& file) {
    return std::filesystem::file_size(out / ("zero0/step-000001/" + file));
  };
  EXPECT_LT(bytes("toy.00000.safetensors"), 3 * bytes("toy.00001.safetensors"));
}

TEST(RunState, TrainerStepExtraAndScalerComeBack) {
  const TempFolder out;
  const std::string saved = train_and_save({.world = 2, .dtype = at::kHalf}, "", 5, out.path());
  EXPECT_THAT(saved, testing::EndsWith("step-000005"));
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2, .dtype = at::kHalf}, comm);
    RunState run = rank.state();
    EXPECT_EQ(load_run(run, saved), (nlohmann::json{{"ema", 0.1}}));
    EXPECT_EQ(run.step, 5);
    EXPECT_EQ(rank.trainer().steps(), 5);
    EXPECT_EQ(rank.trainer().applied(), 5);
    EXPECT_EQ(rank.trainer().optimizer().step(), 5);
    EXPECT_GT(rank.trainer().loss_scale(), 64);
  });
}

TEST(RunState, FrozenParametersAreSavedOnceAndComeBackBitExact) {
  const TempFolder out;
  const std::string saved = train_and_save({.world = 2}, "", 1, out.path());
  on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 3}, comm);
    rank.load(saved);
    const auto weights = rank.weights();
    EXPECT_TRUE(at::equal(weights[3], kToy.initial(1, 1)));
    EXPECT_TRUE(at::equal(weights[5], kToy.initial(2, 0)));
    EXPECT_TRUE(at::equal(weights[8], kToy.initial(3, 2)));
  });
}

TEST(RunState, ExcludedFrozenParametersKeepTheValuesOfTheirBase) {
  const TempFolder out;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2}, comm);
    load_toy(rank.store(), kToy);
    rank.set_save_frozen(false);
    rank.train(1);
    rank.save(out.path());
  });
  const std::string saved = out / "step-000001";
  EXPECT_FALSE(assembled(saved).contains("weight:g1.p1"));
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2}, comm);
    rank.store().write(1, 1, 0, at::full({25}, 3.0));
    rank.load(saved);
    EXPECT_TRUE(at::equal(rank.weights()[3], at::full({5, 5}, 3.0)));
    EXPECT_TRUE(at::equal(rank.weights()[0].reshape(-1), assembled(saved).at("master:g0.p0")));
  });
}

TEST(RunState, PendingGradientsAreNeitherSavedNorKept) {
  const TempFolder out;
  testing::internal::CaptureStderr();
  Content before, after;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2}, comm);
    load_toy(rank.store(), kToy);
    const std::string first = rank.save(out / "a");
    rank.pass();
    rank.store().finish_pass();
    const std::string second = rank.save(out / "b");
    rank.load(second);
    EXPECT_FALSE(rank.store().has_gradients());
    rank.train(1);
    const std::string third = rank.save(out / "c");
    if (comm->rank() == 0) {
      expect_equal(assembled(first), assembled(second));
      after = assembled(third);
    }
  });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("they are not saved"));
  EXPECT_THAT(log, HasSubstr("they are dropped"));
  expect_equal(assembled(train_and_save({.world = 2}, "", 1, out / "d")), after);
}

TEST(RunState, SavingInTheMiddleChangesNothing) {
  const TempFolder out;
  const RunPlace place{.world = 2, .dtype = at::kBFloat16};
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, place, comm);
    load_toy(rank.store(), kToy);
    for (int i = 0; i < 4; ++i) {
      rank.train(1);
      rank.save(out / "often");
    }
  });
  expect_equal(assembled(train_and_save(place, "", 4, out / "once")),
               assembled(out / "often/step-000004"));
}

std::string load_error(const ToyModel& model, const std::string& path, bool training = true) {
  return sentence_of<InputError>([&] {
    on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      ToyRank rank(model, {.world = 2, .training = training}, comm);
      rank.load(path);
    });
  });
}

TEST(RunState, AnotherModelIsRefusedByItsFirstParameterThatDiffers) {
  const TempFolder out;
  const std::string saved = train_and_save({.world = 3}, "", 1, out.path());
  ToyModel shape = kToy;
  shape.groups[1][0].shape = {33, 5};
  EXPECT_THAT(load_error(shape, saved), HasSubstr("g1.p0 of shape [33,5]"));
  EXPECT_THAT(load_error(shape, saved), HasSubstr("g1.p0 of shape [33,4]"));
  ToyModel frozen = kToy;
  frozen.groups[3][0].trainable = false;
  EXPECT_THAT(load_error(frozen, saved), HasSubstr("g3.p0 of shape [129] (frozen)"));
  ToyModel more = kToy;
  more.groups[3].push_back({{2}});
  EXPECT_THAT(load_error(more, saved), HasSubstr("g3.p3 of shape [2] (trained)"));
  ToyModel fewer = kToy;
  fewer.groups[3].pop_back();
  EXPECT_THAT(load_error(fewer, saved), HasSubstr("g3.p2"));
}

TEST(RunState, AModelThatIsAbsentIsRefusedWithTheNamesOfThoseThatAreThere) {
  const TempFolder out;
  const std::string saved = train_and_save({.world = 2}, "", 1, out.path());
  const std::string sentence = sentence_of<InputError>([&] {
    on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      ToyRank rank(kToy, {.world = 2}, comm);
      RunState run = rank.state();
      run.models[0].name = "critic";
      load_run(run, saved);
    });
  });
  EXPECT_THAT(sentence, HasSubstr("no model critic, only toy"));
}

TEST(RunState, OptimizerStateThatWasNotSavedIsMissed) {
  const TempFolder out;
  on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {}, comm);
    RunState run = rank.state();
    run.models[0].trainer = nullptr;
    save_run(run, {}, out.path());
  });
  EXPECT_THAT(load_error(kToy, out / "step-000000"), HasSubstr("no optimizer state of toy"));
}

TEST(RunState, DamageInAnyFileIsNamedBeforeAValueChanges) {
  const TempFolder out;
  const std::string saved = train_and_save({.world = 3}, "", 2, out.path());
  for (const std::string name : {"toy.00000.safetensors", "toy.00002.safetensors", "state.json"}) {
    const std::string whole = slurp(saved + "/" + name);
    std::string damaged = whole;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
    spit(saved + "/" + name, damaged);
    std::vector<at::Tensor> after;
    std::mutex mutex;
    const std::string sentence = sentence_of<InputError>([&] {
      on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
        ToyRank rank(kToy, {.world = 2}, comm);
        try {
          rank.load(saved);
        } catch (const Error&) {
          const std::lock_guard lock(mutex);
          for (const OptimizerShard& shard : rank.store().shards()) {
            after.push_back(shard.master);
          }
          throw;
        }
      });
    });
    EXPECT_THAT(sentence, HasSubstr(name));
    EXPECT_FALSE(after.empty());
    for (const at::Tensor& master : after) {
      EXPECT_EQ(master.abs().sum().item<double>(), 0);
    }
    spit(saved + "/" + name, whole);
  }
}

TEST(RunState, TheNewestWholeRunIsTheSameOnEveryRank) {
  const TempFolder out;
  const std::string older = train_and_save({.world = 2}, "", 1, out.path());
  const std::string newer = train_and_save({.world = 2}, older, 1, out.path());
  std::filesystem::remove(newer + "/toy.00001.safetensors");
  testing::internal::CaptureStderr();
  on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    EXPECT_EQ(find_newest_run(*comm, out.path()), older);
    EXPECT_EQ(find_newest_run(*comm, out / "absent"), std::nullopt);
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("is not whole and is skipped"));
}

TEST(RunState, OlderCheckpointsGoOnlyAfterTheNewOneStands) {
  const TempFolder out;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2}, comm);
    for (int i = 0; i < 4; ++i) {
      rank.train(1);
      rank.save(out.path(), 2);
    }
    comm->barrier();
    EXPECT_EQ(out.count(), 2u);
    comm->barrier();
    rank.save(out.path(), 2);  // the same step again replaces it
    rank.train(1);
    rank.save(out.path(), 0);
  });
  EXPECT_EQ(out.count(), 3u);
  EXPECT_TRUE(std::filesystem::exists(out / "step-000003"));
}

TEST(RunState, AFailureOnOneRankFailsAllAndLeavesNothing) {
  const TempFolder out;
  const std::string older = train_and_save({.world = 2}, "", 1, out.path());
  const std::string sentence = sentence_of<Error>([&] {
    on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      ToyRank rank(kToy, {.world = 3}, comm);
      RunState run = rank.state();
      run.step = 7;
      if (comm->rank() == 2) {
        run.models[0].name = "no/such/folder";
      }
      save_run(run, {}, out.path());
    });
  });
  EXPECT_THAT(sentence, HasSubstr("no/such/folder"));
  EXPECT_EQ(out.count(), 1u);
  EXPECT_EQ(find_newest_whole(out.path()), older);
}

TEST(RunState, AFolderThatIsNotSharedIsRefusedWithTheRankThatDoesNotSeeIt) {
  const TempFolder out;
  on_ranks(3,
           [&](std::shared_ptr<Communicator> comm) { require_shared_folder(*comm, out / "new"); });
  EXPECT_TRUE(std::filesystem::is_empty(out / "new"));
  const std::string sentence = sentence_of<UsageError>([&] {
    on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      require_shared_folder(*comm, out / str("local", comm->rank()));
    });
  });
  EXPECT_THAT(sentence, HasSubstr("rank 1"));
  EXPECT_THAT(sentence, HasSubstr("local1"));
}

// Saves again and again until it is killed; the body of a forked process, which an error
// ends by another signal.
[[noreturn]] void save_for_ever(const std::string& out) noexcept {
  // After a fork torch makes its thread pool anew, which two ranks must not do at once.
  at::set_num_threads(1);
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2}, comm);
    load_toy(rank.store(), kToy);
    const auto newest = find_newest_run(*comm, out);
    if (newest) {
      rank.load(*newest);
    }
    while (true) {
      rank.train(1);
      rank.save(out);
    }
  });
  std::abort();
}

TEST(RunState, ARunThatIsKilledAtAnyMomentResumesFromAWholeCheckpoint) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "a forked process cannot use the GPU that its parent has opened";
  }
  const TempFolder out;
  train_and_save({.world = 2}, "", 1, out.path());
  int64_t reached = 1;
  for (int i = 0; i < 12; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      save_for_ever(out.path());
    }
    // Once it has got ahead, at another moment of its next saves each time.
    const std::string next = out / step_folder_name(reached + 1);
    for (int wait = 0; wait < 20000 && !std::filesystem::exists(next); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(3700 * i));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    testing::internal::CaptureStderr();
    const auto newest = find_newest_whole(out.path());
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    ASSERT_TRUE(newest.has_value());
    const int64_t step = std::stoll(newest->substr(newest->rfind('-') + 1));
    EXPECT_GT(step, reached);
    reached = step;
  }
  const TempFolder plain;
  expect_equal(assembled(train_and_save({.world = 2}, "", static_cast<int>(reached), plain.path())),
               assembled(*find_newest_whole(out.path())));
}

}  // namespace
}  // namespace reknit
