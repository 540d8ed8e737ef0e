// Uses an installed Reknit: a header of its own, one with a tensor in it, and the library.
#include <reknit/base/param_view.h>
#include <reknit/base/rank.h>

#include <cstdio>

int main() {
  reknit::ParamView absent;
  if (absent.present())
    return 1;
  std::printf("rank %d of %d\n", reknit::this_rank().rank, reknit::this_rank().world);
}
