// A pickle's values as plain data: nothing in it can name or run code.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

enum class PickleKind {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kTuple,
  kList,
  kDict,
  kGlobal,
  kCall,
  kPersistent
};

/// One value. Values are owned by the Pickle; text points into the pickle's bytes
/// or at one of the allowed names.
struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  int64_t number = 0;     ///< kBool, kInt
  double real = 0;        ///< kFloat
  std::string_view text;  ///< kText; kGlobal, kCall: "module.name"
  /// kTuple, kList: the elements. kDict: key, value, key, value, ... in the order
  /// of writing. kCall: the arguments. kPersistent: the one identifier.
  std::vector<const PickleValue*> items;
  const PickleValue* state = nullptr;  ///< kCall: the attributes it was given, or null
};

/// Which names a pickle may mention.
enum class PickleNames {
  kStateDict,  ///< what tensors and dictionaries need
  kDeepSpeed,  ///< and the classes in DeepSpeed's checkpoints, which stay data
};

/// The value tree of one pickle of a torch.save state dict.
class Pickle {
 public:
  /// Reads `bytes`, which must outlive this object. Knows the opcodes that
  /// torch.save writes (protocols 2 to 4) and the names that `names` allows; calls
  /// are kept as data and never made. Throws InputError naming `where` and the
  /// opcode and its place, or the name that was asked for.
  Pickle(std::string_view bytes, std::string where, PickleNames names = PickleNames::kStateDict);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const noexcept { return *root_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace reknit
