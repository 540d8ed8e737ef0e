# The packaged libraries (docs/dependencies.md says what each is for).
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_library(PCRE2_LIBRARY NAMES libpcre2-8.a pcre2-8 REQUIRED)
find_path(PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(ZLIB_STATIC NAMES libz.a z REQUIRED)

add_library(pcre2 INTERFACE)
target_include_directories(pcre2 SYSTEM INTERFACE ${PCRE2_INCLUDE})
target_compile_definitions(pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8 PCRE2_STATIC)
target_link_libraries(pcre2 INTERFACE ${PCRE2_LIBRARY})
