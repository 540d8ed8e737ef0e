// torch.save files: the values of Python, every view, and nothing that could run.
#include "reknit/checkpoint/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/safetensors.h"
#include "reknit/checkpoint/unpickler.h"
#include "tests/checkpoint/checkpoint_support.h"

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::string_literals;

void expect_same(const TorchFile& file, const SafetensorsFile& expected) {
  EXPECT_EQ(file.tensors().size(), expected.tensors().size());
  for (const TensorInfo& info : expected.tensors()) {
    const at::Tensor tensor = file.read(info.name);
    EXPECT_EQ(tensor.scalar_type(), info.dtype) << info.name;
    EXPECT_TRUE(at::equal(tensor, expected.read(info.name))) << info.name;
  }
}

std::string refusal(const std::string& path) {
  return sentence_of<InputError>([&] { TorchFile file(path); });
}

TEST(TorchFile, AgreesWithPythonAndRefusesWhatItMust) {
  const TempFolder folder;
  run_golden_script("checkpoint_files.py", {folder.path()}, folder / "log.txt");
  expect_same(TorchFile(folder / "dtypes.bin"), SafetensorsFile(folder / "dtypes.safetensors"));
  expect_same(TorchFile(folder / "protocol4.bin"), SafetensorsFile(folder / "dtypes.safetensors"));
  expect_same(TorchFile(folder / "views.bin"), SafetensorsFile(folder / "views.safetensors"));
  expect_same(TorchFile(folder / "views64.bin"), SafetensorsFile(folder / "views.safetensors"));
  expect_same(TorchFile(folder / "module.bin"), SafetensorsFile(folder / "module.safetensors"));

  const TorchFile views(folder / "views.bin");
  EXPECT_EQ(views.read("embed").data_ptr(), views.read("head").data_ptr());
  EXPECT_THAT(views.read("transposed").strides().vec(), ElementsAre(1, 12));

  const TorchFile mixed(folder / "mixed.bin");
  ASSERT_EQ(mixed.tensors().size(), 1u);
  EXPECT_NE(mixed.tensors()[0].name, "step");

  EXPECT_THAT(refusal(folder / "legacy.bin"), HasSubstr("before version 1.6"));
  EXPECT_THAT(refusal(folder / "negated.bin"), HasSubstr("tensor w"));
  EXPECT_THAT(refusal(folder / "bare.bin"), HasSubstr("no dictionary"));
  EXPECT_THAT(refusal(folder / "big_endian.bin"), HasSubstr("byte order big"));
  EXPECT_THAT(refusal(folder / "whole_module.bin"), HasSubstr("torch.nn.modules.linear.Linear"));
  EXPECT_THAT(refusal(folder / "system.bin"), HasSubstr("posix.system"));
  EXPECT_THAT(refusal(folder / "eval.bin"), HasSubstr("__builtin__.eval"));
  EXPECT_FALSE(std::filesystem::exists("executed"));
  EXPECT_FALSE(std::filesystem::exists(folder / "executed"));

  const std::string whole = slurp(folder / "views.bin");
  for (size_t size = 0; size < whole.size(); size += 1 + size / 16) {
    spit(folder / "cut.bin", whole.substr(0, size));
    EXPECT_THROW(TorchFile(folder / "cut.bin"), InputError) << size;
  }
}

TEST(TorchFile, EndsEverySeedOfTheFuzzerWithAnAnswer) {
  size_t readable = 0;
  for (const std::string& path : fuzz_seeds("pickle")) {
    try {
      readable += TorchFile(path).tensors().size();
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(readable, 0u);
}

std::string pickle_refusal(const std::string& bytes) {
  return sentence_of<InputError>([&] { Pickle pickle(bytes, "x"); });
}

TEST(Pickle, NamesTheGlobalThatItRefuses) {
  EXPECT_THAT(pickle_refusal("\x80\x02"
                             "cos\nsystem\nX\x02\0\0\0ls\x85R."s),
              HasSubstr("os.system"));
  EXPECT_THAT(pickle_refusal("\x80\x04\x8c\x02os\x8c\x06system\x93)R."s), HasSubstr("os.system"));
  EXPECT_THAT(pickle_refusal("cbuiltins\ngetattr\n."), HasSubstr("builtins.getattr"));
  EXPECT_THAT(pickle_refusal("ctorch\nload\n."), HasSubstr("torch.load"));
}

TEST(Pickle, RefusesOpcodesThatNoStateDictNeeds) {
  for (const char opcode : {'i', 'o', 'P', 'I', 'S', 'V', '2', '0', '\x82', '\x92', '\x90'}) {
    EXPECT_THAT(pickle_refusal(std::string(1, opcode) + "."), HasSubstr("opcode")) << opcode;
  }
}

TEST(Pickle, RefusesDamagedPrograms) {
  EXPECT_THAT(pickle_refusal(""), HasSubstr("ends early"));
  EXPECT_THAT(pickle_refusal("."), HasSubstr("value where there is none"));
  EXPECT_THAT(pickle_refusal("X\xff\xff\xff\xff"
                             "a"),
              HasSubstr("4294967295 bytes are wanted"));
  EXPECT_THAT(pickle_refusal("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                             "a"),
              HasSubstr("18446744073709551615"));
  EXPECT_THAT(pickle_refusal("h\x05."), HasSubstr("value 5"));
  EXPECT_THAT(pickle_refusal("t."), HasSubstr("mark"));
  EXPECT_THAT(pickle_refusal("}(Nu."), HasSubstr("without a value"));
  EXPECT_THAT(pickle_refusal("N(."), HasSubstr("value where there is none"));
  EXPECT_THAT(pickle_refusal("NNa."), HasSubstr("another kind"));
  EXPECT_THAT(pickle_refusal("\x80\x01N."), HasSubstr("protocol 1"));
  EXPECT_THAT(pickle_refusal("\x8a\x09\0\0\0\0\0\0\0\0\0."s), HasSubstr("9 bytes"));
}

TEST(Pickle, ReadsNumbersOfEveryWidthAndSign) {
  const auto number = [](const std::string& bytes) { return Pickle(bytes, "x").root().number; };
  EXPECT_EQ(number("K\xff."), 255);
  EXPECT_EQ(number("M\xff\xff."), 65535);
  EXPECT_EQ(number("J\xff\xff\xff\xff."), -1);
  EXPECT_EQ(number("\x8a\x01\xff."), -1);
  EXPECT_EQ(number("\x8a\x02\xff\0."s), 255);
  EXPECT_EQ(number("\x8a\0."s), 0);
  EXPECT_EQ(number("\x8a\x08\0\0\0\0\0\0\0\x80."s), INT64_MIN);
}

TEST(Pickle, DeepNestingNeedsNoStack) {
  std::string bytes = "]";
  for (int i = 0; i < 200000; ++i) {
    bytes += "\x85";
  }
  EXPECT_EQ(Pickle(bytes + ".", "x").root().items.size(), 1u);
}

}  // namespace
}  // namespace reknit
