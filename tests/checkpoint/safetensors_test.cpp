// safetensors: every dtype round trip, views that live on, damaged headers refused by value.
#include "reknit/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "tests/checkpoint/checkpoint_support.h"

namespace reknit {
namespace {

using testing::HasSubstr;

std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

SafetensorsFile parse(const std::string& header, const std::string& data = "") {
  return SafetensorsFile(MappedFile::of_bytes("x.safetensors", file_bytes(header, data)));
}

std::string refusal(const std::string& header, const std::string& data = "") {
  return sentence_of<InputError>([&] { parse(header, data); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

NamedTensors every_dtype() {
  NamedTensors tensors;
  for (const at::ScalarType dtype : {at::kBool, at::kChar, at::kHalf, at::kDouble, at::kByte,
                                     at::kFloat, at::kBFloat16, at::kLong, at::kInt, at::kShort}) {
    tensors.emplace_back(c10::toString(dtype), at::arange(3, at::kFloat).to(dtype));
  }
  tensors.emplace_back("scalar", at::full({}, 2.5));
  tensors.emplace_back("empty", at::empty({0, 3}));
  tensors.emplace_back("transposed", at::arange(6, at::kFloat).view({2, 3}).t());
  return tensors;
}

TEST(Safetensors, GivesBackEveryDtypeAlignedToItsElement) {
  const TempFolder folder;
  write_safetensors(folder / "a.safetensors", every_dtype());
  const SafetensorsFile file(folder / "a.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), every_dtype().size());
  for (const auto& [name, tensor] : every_dtype()) {
    const at::Tensor read = file.read(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(read, tensor)) << name;
    EXPECT_TRUE(read.is_contiguous()) << name;
  }
  uint64_t header = 0;
  std::memcpy(&header, slurp(folder / "a.safetensors").data(), 8);
  EXPECT_EQ(header % 8, 0u);
}

TEST(Safetensors, TensorsOutliveTheFileAndWritingToOneLeavesTheFile) {
  const TempFolder folder;
  write_safetensors(folder / "a.safetensors", {{"w", at::ones({4})}});
  const std::string before = slurp(folder / "a.safetensors");
  at::Tensor tensor = SafetensorsFile(folder / "a.safetensors").read("w");
  std::filesystem::remove(folder / "a.safetensors");
  EXPECT_EQ(tensor.sum().item<float>(), 4);
  spit(folder / "b.safetensors", before);
  at::Tensor other = SafetensorsFile(folder / "b.safetensors").read("w");
  other.fill_(7);
  EXPECT_EQ(slurp(folder / "b.safetensors"), before);
}

TEST(Safetensors, ReadsDataThatIsNotAligned) {
  const float value = 1.5;
  const std::string data(reinterpret_cast<const char*>(&value), 4);
  for (const char* pad : {"", " ", "  ", "   "}) {
    const auto file = parse("{" + entry("b", "I8", "[1]", "[0,1]") + "," +
                                entry("w", "F32", "[1]", "[1,5]") + "}" + pad,
                            "\x07" + data);
    EXPECT_EQ(file.read("w").item<float>(), 1.5);
    EXPECT_EQ(file.read("b").item<int64_t>(), 7);
  }
}

TEST(Safetensors, RefusesLengthsBeyondTheFile) {
  const auto refused = [](const std::string& bytes) {
    return sentence_of<InputError>(
        [&] { SafetensorsFile(MappedFile::of_bytes("x.safetensors", bytes)); });
  };
  EXPECT_THAT(refused(""), HasSubstr("0 bytes"));
  EXPECT_THAT(refused(std::string("\x10\0\0\0\0\0\0\0{}", 10)), HasSubstr("length is 16"));
  EXPECT_THAT(refused(std::string(8, '\xff') + "{}"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refused("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git-lfs"));
}

TEST(Safetensors, NamesTheOffendingValueOfADamagedHeader) {
  EXPECT_THAT(refusal("[]"), HasSubstr("does not start with {"));
  EXPECT_THAT(refusal("{\"a\":"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\":1e999}"), HasSubstr("1e999"));
  EXPECT_THAT(refusal("{\"a\":3}"), HasSubstr("tensor a of x.safetensors is described by 3"));
  EXPECT_THAT(refusal("{" + entry("a", "F31", "[1]", "[0,4]") + "}", "1234"), HasSubstr("F31"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[-1]", "[0,4]") + "}", "1234"),
              HasSubstr("-1 in shape"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[1.5]", "[0,4]") + "}", "1234"), HasSubstr("1.5"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[1]", "[0]") + "}", "1234"), HasSubstr("[0]"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[1]", "[4,0]") + "}", "1234"), HasSubstr("[4, 0)"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[2]", "[0,4]") + "}", "1234"), HasSubstr("8 bytes"));
  EXPECT_THAT(refusal("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}"), HasSubstr("no data_offsets"));
  EXPECT_THAT(refusal("{\"__metadata__\":{\"a\":1}}"), HasSubstr("maps \"a\" to 1"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[1]", "[0,4]") + "," +
                          entry("a", "F32", "[1]", "[4,8]") + "}",
                      "12345678"),
              HasSubstr("\"a\" twice"));
  EXPECT_THAT(refusal(std::string(10000, '[').insert(0, "{\"a\":")), HasSubstr("deeper than 64"));
}

TEST(Safetensors, ComputesSizesWithoutOverflow) {
  // 2^62 elements of 4 bytes are 0 modulo 2^64.
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[4611686018427387904]", "[0,0]") + "}"),
              HasSubstr("too large"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}"),
              HasSubstr("too large"));
  EXPECT_THAT(refusal("{" + entry("a", "F32", "[18446744073709551615]", "[0,0]") + "}"),
              HasSubstr("18446744073709551615"));
  EXPECT_THAT(
      refusal("{" + entry("a", "I8", "[9223372036854775807]", "[0,9223372036854775807]") + "}",
              "1"),
      HasSubstr("9223372036854775807"));
}

TEST(Safetensors, RefusesGapsOverlapsAndDataBeyondTheTensors) {
  const std::string first = entry("a", "I8", "[2]", "[0,2]");
  EXPECT_THAT(refusal("{" + first + "," + entry("b", "I8", "[2]", "[1,3]") + "}", "123"),
              HasSubstr("tensor b of x.safetensors overlaps"));
  EXPECT_THAT(refusal("{" + first + "," + entry("b", "I8", "[2]", "[3,5]") + "}", "12345"),
              HasSubstr("leaves a gap: it begins at 3"));
  EXPECT_THAT(refusal("{" + first + "}", "123"), HasSubstr("3 bytes of data"));
  EXPECT_THAT(refusal("{" + first + "}", "1"), HasSubstr("says 2"));
}

TEST(Safetensors, ReadsBeyondFourGigabytes) {
  const TempFolder folder;
  const std::string header = "{" + entry("a", "I8", "[5000000000]", "[0,5000000000]") + "," +
                             entry("w", "F32", "[1]", "[5000000000,5000000004]") + "}";
  AtomicFile file(folder / "large");
  file.write(file_bytes(header, ""));
  const float value = 2.5;
  file.write_at(static_cast<int64_t>(8 + header.size()) + 5000000000,
                {reinterpret_cast<const char*>(&value), 4});
  file.commit();
  const SafetensorsFile large(folder / "large");
  EXPECT_EQ(large.read("w").item<float>(), 2.5);
  EXPECT_EQ(large.read("a").numel(), 5000000000);
}

TEST(Safetensors, EndsEverySeedOfTheFuzzerWithAnAnswer) {
  size_t readable = 0;
  for (const std::string& path : fuzz_seeds("safetensors")) {
    try {
      readable += SafetensorsFile(path).tensors().size();
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(readable, 0u);
}

TEST(Safetensors, WriterInsistsOnWhatWasAnnounced) {
  const TempFolder folder;
  const at::Tensor tensor = at::ones({2});
  {
    SafetensorsWriter writer(folder / "a", {info_of("w", tensor), info_of("v", tensor)});
    EXPECT_THROW(writer.write("u", tensor), StateError);
    EXPECT_THROW(writer.write("w", at::ones({3})), StateError);
    EXPECT_THROW(writer.write("w", tensor.to(at::kHalf)), StateError);
    writer.write("w", tensor);
    EXPECT_THROW(writer.write("w", tensor), StateError);
    EXPECT_THROW(writer.commit(), StateError);
  }
  EXPECT_EQ(folder.count(), 0u);
  EXPECT_THROW(SafetensorsWriter(folder / "a", {info_of("w", tensor), info_of("w", tensor)}),
               StateError);
  EXPECT_THROW(write_safetensors(folder / "a", {{"c", at::zeros({1}, at::kComplexFloat)}}),
               UsageError);
}

}  // namespace
}  // namespace reknit
