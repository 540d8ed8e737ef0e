#include "apps/data_flags.h"

#include "apps/outputs.h"
#include "apps/validators.h"

#include <filesystem>
#include <memory>
#include <thread>

namespace reknit {
namespace {

namespace fs = std::filesystem;

const char* kFooter =
    "\nPretraining reads token files: PREFIX.bin holds the tokens of all documents, PREFIX.idx "
    "says\nwhere each begins. They are Megatron's, so either program reads what the other wrote.\n"
    "\nExamples:\n"
    "  reknit data build --input books.jsonl --tokenizer gpt2 --out data/books\n"
    "  reknit data show data/books --tokenizer gpt2\n"
    "\n`reknit data build --help` and `reknit data show --help` explain their flags.";

const char* kBuildFooter =
    "\nEach line of the input is an object with a text, {\"text\": \"...\"}; it becomes one "
    "document, and\nan end token is put after it, so that a model learns where texts end. Rows "
    "without text are\nleft out. Tokens take 2 bytes with a vocabulary below 65500 entries, else "
    "4.\n"
    "\nExamples:\n"
    "  reknit data build --input books.jsonl.gz --tokenizer gpt2 --out data/books\n"
    "  reknit data build --input a.jsonl b.jsonl --json-key body --tokenizer gpt2 --out data/all\n";

const char* kShowFooter =
    "\nWith --seq-length the samples that training reads are shown in its order for --seed and "
    "--split:\nL + 1 tokens, of which the first L are inputs and the last L labels. Without it: "
    "sequences, in\nthe order of the file.\n"
    "\nExamples:\n"
    "  reknit data show data/books --count 3 --tokenizer gpt2\n"
    "  reknit data show data/books --seq-length 1024 --seed 1234\n";

void require_free(const DataBuildOptions& o) {
  for (const char* ending : {".bin", ".idx"}) {
    if (!o.overwrite && fs::exists(o.out + ending)) {
      throw UsageError(str("--out ", o.out, ": there is a ", o.out, ending, " already"),
                       "pass --overwrite, or another prefix");
    }
    std::vector<std::string> inputs = o.inputs;
    inputs.push_back(o.tokenizer_dir);
    keep_inputs_from_file("--out", o.out + ending, inputs);
  }
}

Action add_build(CLI::App& app, std::function<int(const DataBuildOptions&)> run) {
  auto o = std::make_shared<DataBuildOptions>();
  app.add_option("--input", o->inputs, "JSON lines or one JSON array, also .gz")
      ->required()
      ->type_name("FILE");
  app.add_option("--tokenizer", o->tokenizer_dir, "A folder with a tokenizer, or a cached name")
      ->required()
      ->type_name("DIR");
  app.add_option("--out", o->out, "Writes PREFIX.bin and PREFIX.idx")
      ->required()
      ->type_name("PREFIX");
  app.add_option("--json-key", o->json_key, "The member that holds the text")
      ->type_name("KEY")
      ->capture_default_str();
  app.add_flag("--append-eod,!--no-append-eod", o->append_end,
               "An end token after each document (default: yes)");
  app.add_option("--workers", o->workers, "Threads that encode (default: all processors)")
      ->check(at_least(1, 1024))
      ->type_name("N");
  app.add_flag("--overwrite", o->overwrite, "Replaces files that are there");
  app.footer(kBuildFooter);
  return [o, run = std::move(run)] {
    require_files("--input", o->inputs);
    o->tokenizer_dir = require_model("--tokenizer", o->tokenizer_dir);
    require_free(*o);
    if (o->workers == 0) {
      o->workers = std::max<int64_t>(1, std::thread::hardware_concurrency());
    }
    return run(*o);
  };
}

Action add_show(CLI::App& app, std::function<int(const DataShowOptions&)> run) {
  auto o = std::make_shared<DataShowOptions>();
  app.add_option("PREFIX", o->prefix, "The files' name without .bin or .idx")->required();
  app.add_option("--count", o->count, "How many sequences or samples to show")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--tokenizer", o->tokenizer_dir, "Shows the text of the tokens as well")
      ->type_name("DIR");
  app.add_option("--seq-length", o->sequence_length, "Shows training samples of this length")
      ->check(at_least(1))
      ->type_name("L");
  app.add_option("--split", o->split, "Shares of train, valid and test, in sequences")
      ->type_name("A,B,C")
      ->capture_default_str();
  add_seed_flag(app, o->seed);
  app.footer(kShowFooter);
  return [o, run = std::move(run)] {
    o->tokenizer_dir = require_model("--tokenizer", o->tokenizer_dir);
    return run(*o);
  };
}

}  // namespace

Action add_data(CLI::App& app, std::function<int(const DataBuildOptions&)> build,
                std::function<int(const DataShowOptions&)> show) {
  app.require_subcommand(1);
  app.footer(kFooter);
  CLI::App* build_app = app.add_subcommand("build", "Text to token files");
  CLI::App* show_app = app.add_subcommand("show", "What token files hold");
  const Action run_build = add_build(*build_app, std::move(build));
  const Action run_show = add_show(*show_app, std::move(show));
  return
      [build_app, run_build, run_show] { return build_app->parsed() ? run_build() : run_show(); };
}

}  // namespace reknit
