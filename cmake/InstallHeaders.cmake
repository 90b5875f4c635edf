# Runs at `cmake --install`. Copies `headers` (paths below `source`), and every header of ours that they
# include, to the folder `to`, with the prefix gossamer/ before the names that they include.

while(headers)
  list(POP_FRONT headers header)
  list(APPEND installed "${header}")
  file(READ "${source}/${header}" text)
  string(REGEX MATCHALL "#include \"[^\"]+" includes "${text}")
  list(TRANSFORM includes REPLACE "^#include \"" "")
  list(APPEND headers ${includes})
  list(REMOVE_ITEM headers ${installed})
  list(REMOVE_DUPLICATES headers)
  string(REPLACE "#include \"" "#include \"gossamer/" text "${text}")
  message(STATUS "Installing: ${to}/${header}")
  file(WRITE "$ENV{DESTDIR}${to}/${header}" "${text}")
endwhile()
