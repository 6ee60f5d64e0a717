find_package(benchmark REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)

add_executable(kv_index_bench
  kv_index_bench.cpp kv_index_feed_bench.cpp kv_index_hash_bench.cpp kv_index_memory.cpp kv_index_pick_bench.cpp
  kv_index_tables_bench.cpp)
target_link_libraries(kv_index_bench PRIVATE handoff_compile_options handoff_kv_index benchmark::benchmark PkgConfig::XXHASH
                                             PkgConfig::ZMQ)
