// reknit generate: answers to prompts, from sharded weights.
#include "apps/commands.h"
#include "apps/progress.h"
#include "apps/session.h"
#include "apps/tracing.h"
#include "reknit/engine/parts.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

constexpr int64_t kDefaultBatch = 16;

struct Job {
  const GenerateOptions& options;
  const HfFolder& folder;
  const std::optional<Tokenizer>& tokenizer;
  const std::vector<Row>& rows;
  std::vector<std::vector<int64_t>> prompts;
};

std::vector<Row> read_prompts(const GenerateOptions& options) {
  if (options.prompts.empty()) {
    Row row;
    row.prompt = Field{Field::Kind::kText, options.prompt, {}, {}};
    row.place = "--prompt";
    return {row};
  }
  return read_rows({options.prompts.begin(), options.prompts.end()});
}

std::string result_line(const Job& job, size_t index, const Generation& answer) {
  nlohmann::ordered_json line;
  if (job.tokenizer) {
    line["prompt"] = job.tokenizer->decode(job.prompts[index], true);
    line["completion"] = job.tokenizer->decode(answer.tokens, true);
  } else {
    line["prompt"] = nullptr;
    line["completion"] = nullptr;
  }
  line["tokens"] = answer.tokens;
  line["logprobs"] = answer.logprobs;
  line["finish"] = answer.ended ? "eos" : "length";
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// What generation would refuse as well, by the prompt's place.
void check_prompt(const Row& row, const std::vector<int64_t>& tokens, const ModelSpec& spec,
                  int64_t max_new_tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (length == 0) {
    row.fail("the prompt has no tokens");
  }
  for (const int64_t token : tokens) {
    if (token >= spec.vocab) {
      row.fail(str("token ", token, " is outside the model's vocabulary of ", spec.vocab));
    }
  }
  if (spec.max_positions > 0 && length + max_new_tokens > spec.max_positions) {
    throw UsageError(str(row.place, ": a prompt of ", length, " tokens and an answer of ",
                         max_new_tokens, " exceed the model's ", spec.max_positions, " positions"),
                     "shorten the prompt or lower --max-new-tokens");
  }
}

// One rank's share of the answers; the text of all of them where rank 0 asks.
std::string run_rank(const Job& job, RankEnvironment& environment) {
  SlotPool pool(environment.allocator);
  Communicator& world = *environment.world;
  const StoreSettings settings = store_settings("model", job.options.settings, environment, false);
  auto model = make_model(model_spec(job.folder, false), settings,
                          StoreComms::over(environment.world, settings.placement), pool);
  pool.seal();
  load_model(*model, job.folder, ValueHead::kNone, 0);
  const auto count = static_cast<int64_t>(job.prompts.size());
  const auto [begin, end] = rank_part(count, world.rank(), world.size());
  std::vector<GenerationRequest> requests;
  for (int64_t i = begin; i < end; ++i) {
    requests.push_back({job.prompts[i], static_cast<uint64_t>(i)});
  }
  const bool streams = job.prompts.size() == 1 && job.options.out.empty() && job.tokenizer &&
                       job.options.prompts.empty();
  std::optional<StreamDecoder> decoder;
  if (streams) {
    decoder.emplace(*job.tokenizer, true);
  }
  const TokenSink sink = [&](size_t, int64_t token) {
    if (decoder) {
      print_result(decoder->add(token));
    }
  };
  const GenerateOptions& o = job.options;
  const SamplingSettings sampling =
      sampling_settings(o.sampling, o.max_new_tokens, o.seed, job.folder, job.tokenizer);
  Hybrid hybrid(model->decoder, model->store, hybrid_settings(job.options.settings));
  GenerateLease lease = hybrid.enter_generation();
  const auto answers =
      lease.generate(requests, job.options.batch.value_or(kDefaultBatch), sampling, sink);
  if (streams) {
    if (!requests.empty()) {
      print_result(decoder->finish() + "\n");
    }
    return "";
  }
  std::string mine;
  for (size_t i = 0; i < answers.size(); ++i) {
    mine += result_line(job, static_cast<size_t>(begin) + i, answers[i]);
  }
  std::string all;
  for (const std::string& text : gather_texts(world, mine)) {
    all += text;
  }
  return all;
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  const HfFolder folder(options.model_dir);
  const auto tokenizer = find_tokenizer(options.tokenizer_dir, folder.path());
  if (options.chat) {
    throw UsageError("--chat needs chat templates, which this build does not have",
                     "write the conversation as text in the form the model was trained on");
  }
  const std::vector<Row> rows = read_prompts(options);
  Job job{options, folder, tokenizer, rows, {}};
  const ModelSpec spec = model_spec(folder, false);
  for (const Row& row : rows) {
    job.prompts.push_back(prompt_tokens(row, tokenizer));
    check_prompt(row, job.prompts.back(), spec, options.max_new_tokens);
  }
  std::string result;
  TraceFile trace(options);
  run_on_ranks(rank_plan(options), [&](RankEnvironment& environment) {
    const auto recorder = trace.record();
    std::string text = run_rank(job, environment);
    if (environment.world->rank() == 0) {
      result = std::move(text);
    }
  });
  trace.write();
  const bool writes = options.place.leads();
  if (writes && (!result.empty() || !options.out.empty())) {
    write_result(options.out, result);
  }
  return 0;
}

}  // namespace reknit
