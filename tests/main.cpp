// Runs the tests of one folder.
#include <gtest/gtest.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <dlfcn.h>
#include <unistd.h>

/// Sanitizers end the process after a report; it must not end in the text that a test is
/// capturing. Each runtime has a copy of this function.
static void keep_reports() {
  for (const char* runtime : {"libasan.so.8", "libubsan.so.1", "libtsan.so.2"}) {
    void* library = dlopen(runtime, RTLD_LAZY | RTLD_NOLOAD);
    void* found = library == nullptr ? nullptr : dlsym(library, "__sanitizer_set_report_fd");
    if (found != nullptr) {
      reinterpret_cast<void (*)(void*)>(found)(reinterpret_cast<void*>(intptr_t{dup(2)}));
    }
  }
}
#else
static void keep_reports() {}
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  keep_reports();
  return RUN_ALL_TESTS();
}
