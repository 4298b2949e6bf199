# Writes OUTPUT, which defines build_id(): a hash of the library's sources and of FLAGS.
file(GLOB_RECURSE sources ${SOURCE_DIR}/csrc/*.cc ${SOURCE_DIR}/csrc/*.h ${SOURCE_DIR}/kernels/*.cc
     ${SOURCE_DIR}/kernels/*.h ${SOURCE_DIR}/csrc/*.cu ${SOURCE_DIR}/kernels/*.cu
     ${SOURCE_DIR}/kernels/*.cuh)
list(SORT sources)
set(hashes "${FLAGS}")
foreach(source ${sources})
  file(SHA256 ${source} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 id "${hashes}")
string(SUBSTRING ${id} 0 16 id)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[
#include "core/version.h"

namespace outrider {

const char* build_id() { return "@id@"; }

}  // namespace outrider
]] @ONLY)
