// libpng, from Debian's libpng-dev. Only the demo imports it, and only with the trait Demo, so nothing else needs it.
#ifndef CPNG_SHIM_H
#define CPNG_SHIM_H

#include <png.h>

#endif
