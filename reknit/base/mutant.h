// Planted faults: places where the schedule explorer may break the code to see whether
// it notices. In the product every one of them is the constant false.
#pragma once

#ifdef REKNIT_MUTANTS
namespace reknit {
/// True while a test has the mutant switched on.
bool mutant_active(const char* name);
}  // namespace reknit
#define REKNIT_MUTANT(name) ::reknit::mutant_active(#name)
#else
#define REKNIT_MUTANT(name) false
#endif
