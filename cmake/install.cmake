# cmake --install: headers, the library, the command and find_package(reknit).
include(CMakePackageConfigHelpers)
set(package lib/cmake/reknit)

set_property(TARGET reknit APPEND PROPERTY INSTALL_RPATH $ORIGIN)
install(TARGETS reknit LIBRARY DESTINATION lib)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/reknit/ DESTINATION include/reknit
        FILES_MATCHING PATTERN "*.h")
get_property(commands DIRECTORY ${CMAKE_SOURCE_DIR}/apps PROPERTY BUILDSYSTEM_TARGETS)
foreach(command ${commands})
  get_target_property(type ${command} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_property(TARGET ${command} APPEND PROPERTY INSTALL_RPATH $ORIGIN/../lib)
    install(TARGETS ${command} RUNTIME DESTINATION bin)
  endif()
endforeach()

configure_package_config_file(cmake/reknit-config.cmake.in reknit-config.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(reknit-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/reknit-config.cmake
              ${CMAKE_BINARY_DIR}/reknit-config-version.cmake ${CMAKE_SOURCE_DIR}/cmake/torch.cmake
        DESTINATION ${package})
