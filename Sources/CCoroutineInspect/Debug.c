// What a debugger needs to find the coroutines of a process or of a core: `cco_debug_v1`, a table of addresses, sizes
// and offsets, and the commands for gdb, coroutine_gdb.py, as text.
//
// - The table has its version in its name and in its first word. A field keeps its position for ever; new ones come at
//   the end, and the second word is their number.
// - A stripped program has no symbol of it. So a note, which survives `strip`, has the distance from itself to the
//   table, and keeps both from being dropped by the linker (--gc-sections).
// - The text lies in .debug_gdb_scripts, where gdb looks for it. The section is loaded with the program, so that it
//   survives `strip` as well: some KiB that no process touches.
// - The offsets of a job's record are Swift's. CoroutineKernelTests compares them with the layout of the record.
#include "CCoroutineInspect.h"
#include "Internal.h"
#include "Stack/Slab.h"

enum { TABLE_FIELDS = sizeof(cco_debug) / sizeof(uint64_t) - 2 };

// In the order of WaitKind (JobRecord.swift).
static const char kinds[] =
    "start nothing callback task delay job promise children select blocking readable writable lock receive send "
    "permits condition group answer decision ready queue descriptor change";

__attribute__((visibility("hidden"), used)) const cco_debug cco_debug_table = {
    .version = 1,
    .count = TABLE_FIELDS,
    .slabs = cco_slabs,
    .slab_bytes = sizeof(cco_slab),
    .most_slabs = CCO_MOST_SLABS,
    .slab_base = offsetof(cco_slab, base),
    .slab_class = offsetof(cco_slab, size_class),
    .slab_fresh = offsetof(cco_slab, fresh),
    .classes = cco_classes,
    .class_bytes = sizeof(cco_class_sizes),
    .class_stride = offsetof(cco_class_sizes, stride),
    .block_bytes = CCO_BLOCK_SIZE,
    .colours = CCO_COLOURS,
    .context_bytes = sizeof(cco_context),
    .context_stack = offsetof(cco_context, parked.stack),
    .context_caller = offsetof(cco_context, caller),
    .context_phase = offsetof(cco_context, phase),
    .context_low = offsetof(cco_context, low),
    .context_label = offsetof(cco_context, label),
    .phase_running = CCO_RUNNING,
    .label_id = offsetof(cco_label, id),
    .label_name = offsetof(cco_label, name),
    .label_file = offsetof(cco_label, file),
    .label_length = offsetof(cco_label, file_length),
    .label_line = offsetof(cco_label, line),
    .record_label = 128,
    .record_wait = 16,
    .record_flags = 32,
    .record_kind = 37,
    .record_since = 40,
    .record_source = 48,
    .flag_cancelled = 1,
    .root = (const char *)cco_coroutine_start + CCO_ROOT_OFFSET,
    .kinds = kinds,
    .slab_length = offsetof(cco_slab, bytes),
};

// For programs that export their symbols, and for the tests.
extern const cco_debug cco_debug_v1 __attribute__((alias("cco_debug_table"), used));

__asm__(
    ".pushsection .note.coroutine, \"a\", %note\n"
    ".p2align 2\n"
    ".long 10\n"
    ".long 8\n"
    ".long 1\n"
    ".asciz \"Coroutine\"\n"
    ".p2align 2\n"
    ".quad cco_debug_table - .\n"
    ".popsection\n");

// 4: a script in Python, whose text follows its name. #embed is of C23; Swift's Clang has it.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wc23-extensions"
__attribute__((section(".debug_gdb_scripts"), used, retain)) static const char script[] = {
    4, 'c', 'o', 'r', 'o', 'u', 't', 'i', 'n', 'e', '_', 'g', 'd', 'b', '.', 'p', 'y', '\n',
#embed "coroutine_gdb.py"
    , 0};
#pragma clang diagnostic pop
