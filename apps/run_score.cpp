// reknit score: log-probabilities, or values, of given texts.
#include "apps/commands.h"
#include "apps/session.h"
#include "apps/tracing.h"
#include "reknit/engine/parts.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace reknit {
namespace {

constexpr int64_t kDefaultBatch = 8;

using Tokens = std::vector<int64_t>;

Tokens row_tokens(const Row& row, const std::optional<Tokenizer>& tokenizer) {
  if (row.prompt && row.completion) {
    Tokens tokens = field_tokens(row, *row.prompt, tokenizer);
    const Field& completion = *row.completion;
    const Tokens more = completion.kind == Field::Kind::kText && tokenizer
                            ? tokenizer->encode(completion.text, false)
                            : field_tokens(row, completion, tokenizer);
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }
  for (const auto& field : {row.text, row.prompt, row.tokens, row.messages}) {
    if (field) {
      return field_tokens(row, *field, tokenizer);
    }
  }
  row.fail("has no text");
}

std::vector<float> to_floats(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU, at::kFloat).contiguous();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

// The lines of `inputs`, which are run as one packed batch.
std::string score_batch(Model& model, std::span<const Tokens> inputs) {
  const ModelSpec& spec = model.decoder.spec();
  Tokens tokens;
  Tokens targets;
  std::vector<int64_t> lengths;
  for (const Tokens& input : inputs) {
    tokens.insert(tokens.end(), input.begin(), input.end());
    if (!input.empty()) {
      targets.insert(targets.end(), input.begin() + 1, input.end());
      targets.push_back(-1);
    }
    lengths.push_back(static_cast<int64_t>(input.size()));
  }
  const auto device = this_rank().device;
  const TokenBatch batch = TokenBatch::of(tokens, lengths, spec, device);
  std::vector<float> numbers;
  if (spec.value_head) {
    numbers = to_floats(model.decoder.values(model.store, batch, Phase::kForward));
  } else {
    const at::Tensor device_targets = at::tensor(targets, at::kLong).to(device);
    numbers = to_floats(
        model.decoder.logprobs(model.store, batch, device_targets, Phase::kForward, false).logp);
  }
  model.store.finish_pass();
  if (std::any_of(numbers.begin(), numbers.end(), [](float x) { return std::isnan(x); })) {
    throw NumbersError(
        str(spec.value_head ? "a value" : "a log-probability", " of the given text is NaN"),
        "the weights hold NaN or inf, or overflow in this precision: try fp32");
  }
  std::string lines;
  auto next = numbers.begin();
  for (const Tokens& input : inputs) {
    const auto length = static_cast<std::ptrdiff_t>(input.size());
    nlohmann::ordered_json line;
    line["tokens"] = input;
    if (spec.value_head) {
      line["values"] = std::vector<float>(next, next + length);
    } else {
      const std::vector<float> logprobs(next, next + std::max<std::ptrdiff_t>(0, length - 1));
      double sum = 0;
      for (const float logp : logprobs) {
        sum += logp;
      }
      line["logprobs"] = logprobs;
      if (logprobs.empty()) {
        line["loss"] = nullptr;
      } else {
        line["loss"] = -sum / static_cast<double>(logprobs.size());
      }
    }
    next += length;
    lines += line.dump() + "\n";
  }
  return lines;
}

std::string run_rank(const ScoreOptions& options, const HfFolder& folder,
                     const std::vector<Tokens>& inputs, RankEnvironment& environment) {
  SlotPool pool(environment.allocator);
  Communicator& world = *environment.world;
  const StoreSettings settings = store_settings("model", options.settings, environment, false);
  auto model = make_model(model_spec(folder, has_value_head(folder)), settings,
                          StoreComms::over(environment.world, settings.placement), pool);
  pool.seal();
  load_model(*model, folder, ValueHead::kRequired, 0);
  const auto count = static_cast<int64_t>(inputs.size());
  const int64_t batch = options.batch.value_or(kDefaultBatch);
  const auto [begin, end] = rank_part(count, world.rank(), world.size());
  const int64_t forwards = largest(world, (end - begin + batch - 1) / batch);
  std::string mine;
  for (int64_t i = 0; i < forwards; ++i) {
    const int64_t first = std::min(end, begin + i * batch);
    const int64_t last = std::min(end, first + batch);
    mine += score_batch(*model, std::span(inputs).subspan(static_cast<size_t>(first),
                                                          static_cast<size_t>(last - first)));
  }
  std::string all;
  for (const std::string& text : gather_texts(world, mine)) {
    all += text;
  }
  return all;
}

}  // namespace

int run_score(const ScoreOptions& options) {
  const HfFolder folder(options.model_dir);
  const auto tokenizer = find_tokenizer(options.tokenizer_dir, folder.path());
  std::vector<Tokens> inputs;
  for (const Row& row : read_rows({options.inputs.begin(), options.inputs.end()})) {
    inputs.push_back(row_tokens(row, tokenizer));
  }
  std::string result;
  TraceFile trace(options);
  run_on_ranks(rank_plan(options), [&](RankEnvironment& environment) {
    const auto recorder = trace.record();
    std::string text = run_rank(options, folder, inputs, environment);
    if (environment.world->rank() == 0) {
      result = std::move(text);
    }
  });
  trace.write();
  if (options.place.leads()) {
    write_result(options.out, result);
  }
  return 0;
}

}  // namespace reknit
