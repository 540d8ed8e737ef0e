# cmake --install: headers, the library and find_package(reknit).
