// A pickle's values as plain data: nothing in it can name or run code.
#include "reknit/checkpoint/unpickler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "reknit/base/error.h"

namespace reknit {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Everything that a state dict of tensors refers to.
constexpr std::array<std::string_view, 15> kAllowed{
    "collections.OrderedDict",
    "torch.Size",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch.BFloat16Storage",
    "torch.BoolStorage",
    "torch.ByteStorage",
    "torch.CharStorage",
    "torch.DoubleStorage",
    "torch.FloatStorage",
    "torch.HalfStorage",
    "torch.IntStorage",
    "torch.LongStorage",
    "torch.ShortStorage",
};

// What DeepSpeed adds: its stage, the places of parameters in flat buffers, the loss scaler, and
// (0.17) a set of module names.
constexpr std::array<std::string_view, 11> kDeepSpeedAllowed{
    "__builtin__.set",
    "builtins.set",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "torch.Tensor",
    "torch._tensor._rebuild_from_type_v2",
    "torch.bfloat16",
    "torch.float16",
    "torch.float32",
};

/// The listed name equal to `name`; empty: none.
std::string_view find_allowed(std::string_view name, PickleNames names) {
  const auto* found = std::find(kAllowed.begin(), kAllowed.end(), name);
  if (found != kAllowed.end()) {
    return *found;
  }
  const auto* more = std::find(kDeepSpeedAllowed.begin(), kDeepSpeedAllowed.end(), name);
  const bool known = names == PickleNames::kDeepSpeed && more != kDeepSpeedAllowed.end();
  return known ? *more : std::string_view();
}

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& where, PickleNames names,
          std::deque<PickleValue>& values)
      : bytes_(bytes), where_(where), names_(names), values_(values) {}

  const PickleValue* run() {
    while (true) {
      opcode_at_ = at_;
      const auto opcode = static_cast<uint8_t>(take(1)[0]);
      if (opcode == '.') {
        return pop();
      }
      if (!literal(opcode) && !container(opcode) && !memo(opcode) && !call(opcode)) {
        fail("has the opcode ", static_cast<int>(opcode), ", which no state dict needs,");
      }
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InputError(str(where_, " ", str(parts...), " at byte ", opcode_at_));
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail("ends early: ", count, " bytes are wanted and ", bytes_.size() - at_, " are left");
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  template <class T>
  T take_number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view take_line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      fail("ends inside a name");
    }
    const std::string_view line = take(end - at_);
    take(1);
    return line;
  }

  PickleValue* push(PickleKind kind, int64_t number = 0, std::string_view text = {}) {
    values_.push_back({kind, number, 0, text, {}, nullptr});
    stack_.push_back(&values_.back());
    return &values_.back();
  }

  // The stack above the innermost mark is all that opcodes may touch.
  PickleValue* pop() {
    if (stack_.size() <= floor()) {
      fail("takes a value where there is none");
    }
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  PickleValue* pop(PickleKind kind) {
    PickleValue* value = pop();
    if (value->kind != kind) {
      fail("takes a value of another kind");
    }
    return value;
  }

  PickleValue* top(PickleKind kind) {
    PickleValue* value = pop(kind);
    stack_.push_back(value);
    return value;
  }

  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) {
      fail("looks for a mark that was not set");
    }
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const PickleValue*> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }

  int64_t take_long(uint64_t count) {
    if (count > sizeof(int64_t)) {
      fail("has an integer of ", count, " bytes");
    }
    const std::string_view digits = take(count);
    int64_t value = 0;
    std::memcpy(&value, digits.data(), count);
    const uint64_t unused_bits = 64 - 8 * count;
    return count == 0
               ? 0
               : static_cast<int64_t>(static_cast<uint64_t>(value) << unused_bits) >> unused_bits;
  }

  double take_double() {  // the only big-endian number of the format
    const std::string_view taken = take(8);
    std::array<char, 8> digits;
    std::reverse_copy(taken.begin(), taken.end(), digits.begin());
    return std::bit_cast<double>(digits);
  }

  bool literal(uint8_t opcode) {
    switch (opcode) {
      case 'N':
        push(PickleKind::kNone);
        return true;
      case 0x88:
      case 0x89:
        push(PickleKind::kBool, opcode == 0x88);
        return true;
      case 'K':
        push(PickleKind::kInt, take_number<uint8_t>());
        return true;
      case 'M':
        push(PickleKind::kInt, take_number<uint16_t>());
        return true;
      case 'J':
        push(PickleKind::kInt, take_number<int32_t>());
        return true;
      case 0x8a:
        push(PickleKind::kInt, take_long(take_number<uint8_t>()));
        return true;
      case 'G':
        push(PickleKind::kFloat)->real = take_double();
        return true;
      case 'X':
        push(PickleKind::kText, 0, take(take_number<uint32_t>()));
        return true;
      case 0x8c:
        push(PickleKind::kText, 0, take(take_number<uint8_t>()));
        return true;
      case 0x8d:
        push(PickleKind::kText, 0, take(take_number<uint64_t>()));
        return true;
      default:
        return false;
    }
  }

  void push_tuple(size_t count) {
    std::vector<const PickleValue*> items(count);
    for (size_t i = count; i-- > 0;) {
      items[i] = pop();
    }
    push(PickleKind::kTuple)->items = std::move(items);
  }

  void append(PickleKind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* target = top(kind);
    if (kind == PickleKind::kDict && items.size() % 2 != 0) {
      fail("sets a key without a value");
    }
    target->items.insert(target->items.end(), items.begin(), items.end());
  }

  void append_popped(PickleKind kind, size_t count) {
    push_tuple(count);
    append(kind, pop(PickleKind::kTuple)->items);
  }

  bool container(uint8_t opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
        push_tuple(0);
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(opcode - 0x84);
        return true;
      case 't': {
        std::vector<const PickleValue*> items = pop_to_mark();
        push(PickleKind::kTuple)->items = std::move(items);
        return true;
      }
      case ']':
        push(PickleKind::kList);
        return true;
      case '}':
        push(PickleKind::kDict);
        return true;
      case 'a':
        append_popped(PickleKind::kList, 1);
        return true;
      case 'e':
        append(PickleKind::kList, pop_to_mark());
        return true;
      case 's':
        append_popped(PickleKind::kDict, 2);
        return true;
      case 'u':
        append(PickleKind::kDict, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  void remember(uint32_t key) {
    PickleValue* value = pop();
    stack_.push_back(value);
    memo_[key] = value;
  }

  void recall(uint32_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) {
      fail("recalls the value ", key, ", which was not remembered,");
    }
    stack_.push_back(found->second);
  }

  bool memo(uint8_t opcode) {
    switch (opcode) {
      case 'q':
        remember(take_number<uint8_t>());
        return true;
      case 'r':
        remember(take_number<uint32_t>());
        return true;
      case 0x94:
        remember(static_cast<uint32_t>(memo_.size()));
        return true;
      case 'h':
        recall(take_number<uint8_t>());
        return true;
      case 'j':
        recall(take_number<uint32_t>());
        return true;
      case 0x80:
        if (const int protocol = take_number<uint8_t>(); protocol < 2 || protocol > 5) {
          fail("is of pickle protocol ", protocol, ", not 2 to 5,");
        }
        return true;
      case 0x95:
        take(8);  // the length of a frame, which only matters to streams
        return true;
      default:
        return false;
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string full = str(module, ".", name);
    const std::string_view found = find_allowed(full, names_);
    if (found.empty()) {
      throw InputError(
          str(where_, " asks Python for ", full.substr(0, 200), ", which no ",
              names_ == PickleNames::kDeepSpeed ? "checkpoint of DeepSpeed" : "state dict",
              " needs"),
          "nothing was executed; if you trust the file, convert it with the program that wrote it "
          "to a plain state dict or to safetensors");
    }
    push(PickleKind::kGlobal, 0, found);
  }

  void make_call() {
    const PickleValue* arguments = pop(PickleKind::kTuple);
    const PickleValue* callee = pop(PickleKind::kGlobal);
    if (callee->text == "collections.OrderedDict") {
      if (!arguments->items.empty()) {
        fail("makes a dictionary out of arguments");
      }
      push(PickleKind::kDict);
      return;
    }
    push_call(*callee, *arguments);
  }

  // A tensor with attributes, (function, type, arguments, attributes), is that call alone.
  void push_call(const PickleValue& callee, const PickleValue& arguments) {
    const auto& items = arguments.items;
    const bool wrapped = callee.text == "torch._tensor._rebuild_from_type_v2";
    if (wrapped && (items.size() != 4 || items[0]->kind != PickleKind::kGlobal ||
                    items[2]->kind != PickleKind::kTuple)) {
      fail("describes a tensor with attributes in a form that is not known,");
    }
    push(PickleKind::kCall, 0, wrapped ? items[0]->text : callee.text)->items =
        wrapped ? items[2]->items : items;
  }

  bool call(uint8_t opcode) {
    switch (opcode) {
      case 'c': {
        const std::string_view module = take_line();
        push_global(module, take_line());
        return true;
      }
      case 0x93: {
        const PickleValue* name = pop(PickleKind::kText);
        push_global(pop(PickleKind::kText)->text, name->text);
        return true;
      }
      case 'R':
      case 0x81:
        make_call();
        return true;
      case 'b': {  // attributes; those of a dictionary are metadata
        const PickleValue* state = pop();
        PickleValue* target = pop();
        target->state = state;
        stack_.push_back(target);
        return true;
      }
      case 'Q': {
        const PickleValue* identifier = pop();
        push(PickleKind::kPersistent)->items = {identifier};
        return true;
      }
      default:
        return false;
    }
  }

  std::string_view bytes_;
  const std::string& where_;
  PickleNames names_;
  std::deque<PickleValue>& values_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, PickleValue*> memo_;
};

}  // namespace

Pickle::Pickle(std::string_view bytes, std::string where, PickleNames names) {
  root_ = Machine(bytes, where, names, values_).run();
}

}  // namespace reknit
