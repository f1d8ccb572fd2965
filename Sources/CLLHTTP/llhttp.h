// What the source of llhttp includes: its header, where Debian's node-llhttp or libllhttp-dev has installed it.
#ifndef CLLHTTP_FORWARD_H
#define CLLHTTP_FORWARD_H

// Line ends and others as the standard has them. In llhttp 9 that is the only mode.
#define LLHTTP_STRICT_MODE 1

#if __has_include("/usr/share/include/llhttp/llhttp.h")
#include "/usr/share/include/llhttp/llhttp.h"
#elif __has_include(<llhttp.h>)
#include_next <llhttp.h>
#else
#error "llhttp is missing: scripts/setup http installs it (Debian's node-llhttp or libllhttp-dev)"
#endif

#endif
