#include "reknit/comm/patient_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>

namespace reknit::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// Answers no question until it is let go, like one whose process is stopped.
class StoppedStore : public c10d::HashStore {
 public:
  explicit StoppedStore(std::shared_future<void> go_on) : go_on_(std::move(go_on)) {}

  bool check(const std::vector<std::string>&) override { return go_on_.wait(), true; }
  int64_t add(const std::string&, int64_t) override { return go_on_.wait(), 1; }
  void set(const std::string&, const std::vector<uint8_t>&) override { go_on_.wait(); }
  std::vector<uint8_t> get(const std::string&) override {
    return go_on_.wait(), std::vector<uint8_t>();
  }
  bool deleteKey(const std::string&) override { return go_on_.wait(), true; }
  c10::intrusive_ptr<c10d::Store> clone() override {
    return go_on_.wait(), c10::make_intrusive<c10d::HashStore>();
  }

 private:
  std::shared_future<void> go_on_;
};

TEST(PatientStore, PassesQuestionsAndAnswersOn) {
  const PatientStore store(c10::make_intrusive<c10d::HashStore>(), 10s);
  EXPECT_FALSE(store.check({"key"}));
  store.set("key", std::string("a\0b", 3));
  EXPECT_TRUE(store.check({"key"}));
  EXPECT_EQ(store.get("key"), std::string("a\0b", 3));
  EXPECT_EQ(store.add("number", 2), 2);
  EXPECT_EQ(store.add("number", 3), 5);
  store.remove("key");
  EXPECT_FALSE(store.check({"key"}));
}

TEST(PatientStore, EveryQuestionToAStoppedProcessEndsAtTheLimit) {
  std::promise<void> go_on;
  const PatientStore store(c10::make_intrusive<StoppedStore>(go_on.get_future().share()), 60ms);
  const std::function<void()> questions[] = {
      [&] { store.check({"key"}); },      [&] { store.add("key", 1); },
      [&] { store.set("key", "value"); }, [&] { store.get("key"); },
      [&] { store.remove("key"); },       [&] { store.connection("prefix", 1s); },
  };
  for (const auto& ask : questions) {
    const auto start = std::chrono::steady_clock::now();
    try {
      ask();
      ADD_FAILURE() << "a stopped process has answered";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("no answer within 0.06 s"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  }
  go_on.set_value();
}

TEST(PatientStore, AnErrorOfTheQuestionIsPassedOn) {
  EXPECT_THROW(answer_within(10s, []() -> int { throw InputError("the reason"); }), InputError);
  EXPECT_EQ(answer_within(10s, [] { return 7; }), 7);
}

}  // namespace
}  // namespace reknit::test
