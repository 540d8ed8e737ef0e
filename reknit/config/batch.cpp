#include "reknit/config/batch.h"

namespace reknit {
namespace {

using Value = std::optional<int64_t>;

std::string term(const char* letter, const char* name, const Value& value,
                 const std::string& from) {
  return value ? str(name, " ", letter, " = ", *value, " (", from, ")")
               : str(name, " ", letter, " not given");
}

/// Multiplication that cannot overflow for sizes that make sense; none if it would.
Value product(const Value& a, const Value& b) {
  int64_t out = 0;
  if (!a || !b || __builtin_mul_overflow(*a, *b, &out)) {
    return std::nullopt;
  }
  return out;
}

Value quotient(const Value& a, const Value& b) {
  return a && b && *b > 0 && *a >= *b && *a % *b == 0 ? Value(*a / *b) : std::nullopt;
}

struct Attempt {
  Value global, micro, accumulation;
  std::string why;  ///< what was asked of the numbers, for the error
};

Attempt derive(const BatchRequest& r, int64_t ranks) {
  const Value &B = r.global, &m = r.micro, &g = r.accumulation;
  if (B && m && g) {
    const bool holds = product(product(m, g), ranks) == B;
    return {holds ? B : std::nullopt, m, g, "B must equal m * g * W"};
  }
  if (B && m) {
    return {B, m, quotient(B, product(m, ranks)), "B must be a multiple of m * W"};
  }
  if (B && g) {
    return {B, quotient(B, product(g, ranks)), g, "B must be a multiple of g * W"};
  }
  if (m) {
    const int64_t steps = g.value_or(1);
    return {product(product(m, steps), ranks), m, steps, "m * g * W must fit in 64 bits"};
  }
  return {B, quotient(B, ranks), 1, "B must be a multiple of W"};
}

std::string products(const BatchRequest& r, int64_t ranks) {
  if (r.global && r.micro && r.accumulation) {
    const Value all = product(product(r.micro, r.accumulation), ranks);
    return all ? str(", but m * g * W = ", *all) : "";
  }
  if (r.global && (r.micro || r.accumulation)) {
    const Value step = product(r.micro ? r.micro : r.accumulation, ranks);
    return step ? str(", but ", r.micro ? "m" : "g", " * W = ", *step) : "";
  }
  return "";
}

std::string remedy(const BatchRequest& r, int64_t ranks) {
  if (!r.global) {
    return "";  // the product does not fit
  }
  if (r.micro && *r.micro > *r.global) {
    BatchRequest swapped = r;
    std::swap(swapped.global, swapped.micro);
    const Attempt attempt = derive(swapped, ranks);
    if (attempt.global && attempt.micro && attempt.accumulation) {
      return str(
          "train_batch_size and train_micro_batch_size_per_gpu look exchanged: "
          "train_batch_size ",
          *swapped.global, " with train_micro_batch_size_per_gpu ", *swapped.micro,
          " gives gradient_accumulation_steps ", *attempt.accumulation);
    }
  }
  if (r.micro && r.accumulation) {
    const Value all = product(product(r.micro, r.accumulation), ranks);
    return all ? str("write train_batch_size ", *all, ", or leave one of the three out") : "";
  }
  const Value unit = product(r.micro ? r.micro : r.accumulation.value_or(1), ranks);
  if (!unit) {
    return "";
  }
  const int64_t below = *r.global / *unit * *unit;
  return below == 0 ? str("the smallest train_batch_size that works is ", *unit)
                    : str("train_batch_size ", below, " or ", below + *unit, " would work");
}

}  // namespace

BatchSizes solve_batch(const BatchRequest& r, int64_t ranks, const std::string& ranks_from,
                       Findings& findings) {
  bool positive = true;
  auto check = [&](const char* path, const Value& value) {
    if (value && *value < 1) {
      findings.push_back({Severity::kError, path, str(*value), "must be 1 or more", ""});
      positive = false;
    }
  };
  check("train_batch_size", r.global);
  check("train_micro_batch_size_per_gpu", r.micro);
  check("gradient_accumulation_steps", r.accumulation);
  if (!positive) {
    return {};
  }
  if (!r.global && !r.micro) {
    findings.push_back(
        {Severity::kError, "", "",
         "no batch size is given: neither train_batch_size nor "
         "train_micro_batch_size_per_gpu",
         "pass --batch, the sequences of a rank's micro-batch, or give one of the two"});
    return {};
  }
  const Attempt attempt = derive(r, ranks);
  if (attempt.global && attempt.micro && attempt.accumulation) {
    return {*attempt.global, *attempt.micro, *attempt.accumulation, ranks};
  }
  findings.push_back(
      {Severity::kError, "", "",
       str("the batch sizes do not fit: ", term("B", "train_batch_size", r.global, r.global_from),
           ", ", term("m", "train_micro_batch_size_per_gpu", r.micro, r.micro_from), ", ",
           term("g", "gradient_accumulation_steps", r.accumulation, r.accumulation_from),
           ", ranks W = ", ranks, " (", ranks_from, "); ", attempt.why, products(r, ranks)),
       remedy(r, ranks)});
  return {};
}

}  // namespace reknit
