// Compiled without errno of mathematical functions, so that the root is vectorised.
#include "reknit/kernels/update_rules.h"

#include "reknit/kernels/cpu_loops.h"

namespace reknit::kernels {
namespace {

/// A part of the arrays, so that the loops below see plain pointers.
struct Part {
  float* __restrict master;
  float* __restrict first;
  float* __restrict second;
  float* __restrict grad;
  int64_t count;
};

template <class Rule>
REKNIT_UPDATE_RULE void loop(const Part& part, float scale, const RuleConstants& constants,
                             const RuleRange& range) {
  const RuleConstants c = constants;
  const RuleRange r = range;
  float* __restrict master = part.master;
  float* __restrict first = part.first;
  float* __restrict second = part.second;
  float* __restrict grad = part.grad;
  for (int64_t i = 0; i < part.count; ++i) {
    Cell x{master[i], {0.0f, 0.0f}, grad[i] * scale};
    if constexpr (Rule::kStates > 0) {
      x.state[0] = first[i];
    }
    if constexpr (Rule::kStates > 1) {
      x.state[1] = second[i];
    }
    Rule::step(x, c, r);
    if constexpr (Rule::kDirection) {
      grad[i] = x.grad;
    } else {
      master[i] = x.master;
    }
    if constexpr (Rule::kStates > 0) {
      first[i] = x.state[0];
    }
    if constexpr (Rule::kStates > 1) {
      second[i] = x.state[1];
    }
  }
}

// Clones are made of plain functions only: one for each rule.
REKNIT_CPU_CLONES void run(AdamRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<AdamRule>(p, s, c, r);
}
REKNIT_CPU_CLONES void run(AdagradRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<AdagradRule>(p, s, c, r);
}
REKNIT_CPU_CLONES void run(LionRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<LionRule>(p, s, c, r);
}
REKNIT_CPU_CLONES void run(SgdRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<SgdRule>(p, s, c, r);
}
REKNIT_CPU_CLONES void run(SgdMomentumRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<SgdMomentumRule>(p, s, c, r);
}
REKNIT_CPU_CLONES void run(LambDirectionRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<LambDirectionRule>(p, s, c, r);
}
REKNIT_CPU_CLONES void run(MuonDirectionRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<MuonDirectionRule>(p, s, c, r);
}
REKNIT_CPU_CLONES void run(ApplyRule, const Part& p, float s, const RuleConstants& c,
                           const RuleRange& r) {
  loop<ApplyRule>(p, s, c, r);
}

}  // namespace

void update_cpu(UpdateRule rule, const RuleArrays& arrays, int64_t begin, int64_t count,
                float scale, const RuleConstants& constants, const RuleRange& range) {
  const auto at = [&](float* array) { return array == nullptr ? nullptr : array + begin; };
  const Part part{at(arrays.master), at(arrays.state[0]), at(arrays.state[1]), at(arrays.grad),
                  count};
  with_rule(rule, [&](auto which) { run(which, part, scale, constants, range); });
}

}  // namespace reknit::kernels
