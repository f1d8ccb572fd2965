# Commands of gdb for coroutines, in live processes and in cores, also of stripped programs. Reads memory only: it writes
# no register, and calls no function of the program. x86-64, gdb 12 or later.
#
#   info coroutines [TEXT]      lists the coroutines that have a stack; with TEXT, those whose line contains it
#   coroutine N                 selects coroutine N: bt, up, frame, info locals work, until `coroutine off`
#   coroutine N COMMAND         runs one command with the frames of coroutine N: `coroutine 7 bt`
#   coroutine all bt            all parked coroutines, grouped by equal stacks
#   coroutine gcore FILE        writes a core of a live process, as gcore does, with the stacks of coroutines
#
# gdb takes frame 0 from the registers of a thread. So a backtrace of a parked coroutine begins at frame 1 or above: the
# frames before are the thread's, and not shown. Names of Swift are those of swift-demangle, if that is on the PATH.
#
# Programs contain this text (.debug_gdb_scripts); gdb loads it if the program is in a folder that it trusts:
#   (gdb) add-auto-load-safe-path /path/to/program
# The layout comes from the program's own table, cco_debug_v1, so one script fits every version of the library.
import itertools
import re
import struct
import subprocess

import gdb
from gdb.FrameDecorator import FrameDecorator
from gdb.unwinder import Unwinder

TABLE = ("slabs slab_bytes most_slabs slab_base slab_class slab_fresh classes class_bytes class_stride block_bytes colours "
         "context_bytes context_stack context_caller context_phase context_low context_label phase_running label_id "
         "label_name label_file label_length label_line record_label record_wait record_flags record_kind record_since "
         "record_source flag_cancelled root kinds slab_length").split()


class Memory:
    def __init__(self):
        self.inferior = gdb.selected_inferior()

    def read(self, at, count):
        return bytes(self.inferior.read_memory(at, count))

    def word(self, at):
        return struct.unpack("<Q", self.read(at, 8))[0]

    def text(self, at, count):
        return escape(self.read(at, count).decode("utf8", "replace"))

    def string(self, at):
        out = b""
        while len(out) < 4096 and b"\0" not in out:
            out += self.read(at + len(out), 1)
        return escape(out.rstrip(b"\0").decode("utf8", "replace"))


def escape(text):
    return "".join(c if c.isprintable() else "\\u{%X}" % ord(c) for c in text)


class Layout:
    """The table of the program: numbers of 64 bits, the first two are the version and their count."""

    def __init__(self, memory):
        at = self.find(memory)
        version, count = struct.unpack("<2Q", memory.read(at, 16))
        if version != 1 or count < len(TABLE):
            raise gdb.GdbError("the program's table has version %d, which this script does not know" % version)
        values = struct.unpack("<%dQ" % len(TABLE), memory.read(at + 16, 8 * len(TABLE)))
        self.__dict__.update(zip(TABLE, values))
        self.kind_names = memory.string(self.kinds).split(" ")
        self.memory, self.slabs_found = memory, []
        table = memory.read(self.slabs, self.slab_bytes * self.most_slabs)
        for i in range(0, len(table), self.slab_bytes):
            base, = struct.unpack_from("<Q", table, i + self.slab_base)
            if base != 0:
                size_class, = struct.unpack_from("<I", table, i + self.slab_class)
                fresh, = struct.unpack_from("<I", table, i + self.slab_fresh)
                length, = struct.unpack_from("<Q", table, i + self.slab_length)
                stride = memory.word(self.classes + size_class * self.class_bytes + self.class_stride)
                self.slabs_found.append((base, length, stride, fresh))

    def context(self, base, stride, slot):
        return base + (slot + 1) * stride - self.block_bytes - slot % self.colours * 64

    def context_of(self, address):
        """The context on whose stack an address lies; None for other memory."""
        for base, length, stride, _ in self.slabs_found:
            if base <= address < base + length:
                return self.context(base, stride, (address - base) // stride)
        return None

    def below(self, context):
        """Where the flow is parked that has stepped a generator's body."""
        caller = self.memory.word(context + self.context_caller)
        return self.memory.word(caller) if caller != 0 and self.context_of(caller) is not None else 0

    @staticmethod
    def find(memory):
        try:
            return int(gdb.parse_and_eval("(unsigned long)&cco_debug_v1"))
        except gdb.error:
            pass
        # A stripped program has no such symbol, but a note that says how far away the table is.
        files = gdb.execute("info files", to_string=True)
        found = re.search(r"(0x[0-9a-f]+) - 0x[0-9a-f]+ is \.note\.coroutine", files)
        if not found:
            raise gdb.GdbError("no program with Coroutine is loaded")
        at = int(found.group(1), 16) + 24
        return (at + memory.word(at)) % (1 << 64)


class Coroutine:
    __slots__ = "at stack label id name site kind source word cancelled thread".split()

    @property
    def state(self):
        if self.stack == 0:
            where = self.thread
            return "running" + (" on thread %d (LWP %d)" % (where.num, where.ptid[1]) if where is not None else "")
        if self.word & 0xFF == 1:
            return "waiting %s %#x" % (self.kind, self.source)
        return "ready"

    @property
    def line(self):
        name = ' "%s"' % self.name if self.name else ""
        return "#%d%s %s%s, launched at %s" % (
            self.id, name, self.state, ", cancelled" if self.cancelled else "", self.site)


def coroutines():
    memory = Memory()
    t = Layout(memory)
    strings = {}
    threads = None
    for base, _, stride, fresh in t.slabs_found:
        for slot in range(fresh):
            at = t.context(base, stride, slot)
            try:
                block = memory.read(at, t.context_bytes)
            except gdb.MemoryError:
                continue  # a core leaves out pages that were never touched
            phase, = struct.unpack_from("<I", block, t.context_phase)
            label, = struct.unpack_from("<Q", block, t.context_label)
            if phase == t.phase_running and label != 0:
                c = coroutine(memory, t, at, block, label, strings)
                if c is None:
                    continue
                c.thread = None
                if c.stack == 0:
                    threads = running(memory, t) if threads is None else threads
                    c.thread = threads.get(c.at)
                yield c


def running(memory, t):
    """The threads by the contexts on whose stacks they run, and by those that have stepped these."""
    found, selected = {}, gdb.selected_thread()
    for thread in gdb.selected_inferior().threads():
        try:
            thread.switch()
            frame, at = gdb.newest_frame(), None
            # A handler of a signal has a stack of its own.
            for _ in range(64):
                at = t.context_of(int(frame.read_register("rsp")))
                frame = frame.older()
                if at is not None or frame is None:
                    break
            while at is not None and at not in found:
                found[at] = thread
                at = t.context_of(memory.word(at + t.context_caller))
        except gdb.error:
            continue  # a core may lack the thread's stack
    if selected is not None:
        selected.switch()
    return found


def coroutine(memory, t, at, block, label, strings):
    """The coroutine with this context; None for the body of a generator, whose label is not in a job's record."""
    c = Coroutine()
    c.at, c.label = at, label
    c.stack, = struct.unpack_from("<Q", block, t.context_stack)
    record = label - t.record_label
    r = memory.read(record, t.record_label + t.label_line + 4)
    if struct.unpack_from("<Q", r, 0)[0] != at:
        return None
    c.id, = struct.unpack_from("<Q", r, t.record_label + t.label_id)
    name, = struct.unpack_from("<Q", r, t.record_label + t.label_name)
    file, = struct.unpack_from("<Q", r, t.record_label + t.label_file)
    length, = struct.unpack_from("<I", r, t.record_label + t.label_length)
    line, = struct.unpack_from("<I", r, t.record_label + t.label_line)
    c.name, c.site = "", "?"
    try:
        if name != 0:
            c.name = strings.setdefault(name, None) or memory.string(name)
            strings[name] = c.name
        key = (file, length)
        if key not in strings:
            strings[key] = memory.text(file, length)
        c.site = "%s:%d" % (strings[key], line)
    except gdb.MemoryError:
        pass
    kind = r[t.record_kind]
    c.kind = t.kind_names[kind] if kind < len(t.kind_names) else str(kind)
    c.word, = struct.unpack_from("<Q", r, t.record_wait)
    c.source, = struct.unpack_from("<Q", r, t.record_source)
    c.cancelled = struct.unpack_from("<I", r, t.record_flags)[0] & t.flag_cancelled != 0
    return c


def registers(stack):
    """The registers with which a flow goes on that is parked at `stack`."""
    memory = Memory()
    _, r12, r13, r14, r15, rbx, rbp, rip = struct.unpack("<8Q", memory.read(stack, 64))
    # The inline switch goes on with `mov %r15,%rsp`. Without optimisation Boost returns into cco_jump.
    rsp = r15 if memory.read(rip, 3) == b"\x4c\x89\xfc" else stack + 64
    return dict(rip=rip, rsp=rsp, rbp=rbp, rbx=rbx, r12=r12, r13=r13, r14=r14, r15=r15)


class FrameId:
    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


class Parked(Unwinder):
    """While a coroutine is selected, its frames follow the innermost frame of the selected thread."""

    def __init__(self):
        super().__init__("coroutine")
        self.target, self.thread_sp = None, None

    def select(self, stack):
        """Lets the frames of a flow follow that is parked at `stack`, and selects the first of them; None for none."""
        self.target = None
        gdb.invalidate_cached_frames()
        if stack is None:
            return
        self.thread_sp = int(gdb.newest_frame().read_register("rsp"))
        self.target = registers(stack)
        gdb.invalidate_cached_frames()
        frame = gdb.newest_frame()
        # The innermost frame of the thread comes first, with those of functions that are inlined into it.
        while frame is not None and frame.pc() != self.target["rip"]:
            frame = frame.older()
        if frame is not None:
            frame.select()

    def __call__(self, pending):
        if self.target is None or int(pending.read_register("rsp")) != self.thread_sp:
            return None
        kind = gdb.lookup_type("unsigned long")
        # An address below the coroutine's frames: gdb refuses a caller that lies inside of its callee.
        below = gdb.Value(self.target["rsp"] - 256).cast(kind)
        info = pending.create_unwind_info(FrameId(below, pending.read_register("rip")))
        for name, value in self.target.items():
            info.add_saved_register(name, gdb.Value(value).cast(kind))
        return info


parked = Parked()
gdb.unwinder.register_unwinder(None, parked, replace=True)


def flows(t, c):
    """Where a coroutine is parked: more than one flow if it waits in a generator's body, which it steps from another."""
    stack = c.stack
    while stack != 0:
        yield stack
        context = t.context_of(stack)
        stack = t.below(context) if context not in (None, c.at) else 0


def walk(memory, t, c):
    """Return addresses by frame pointers, the innermost first: fit for a hundred thousand stacks."""
    frames = []
    for stack in flows(t, c):
        high = t.context_of(stack)
        if high is None:
            break
        low = stack
        window = memory.read(low, min(high - low, 2048))
        rbp, rip = struct.unpack_from("<2Q", window, 48)
        while rip != t.root and len(frames) < 256:
            frames.append(rip)
            if not low <= rbp <= high - 16:
                return tuple(frames)
            low, at = rbp, rbp - stack
            pair = window[at:at + 16] if at + 16 <= len(window) else memory.read(rbp, 16)
            rbp, rip = struct.unpack("<2Q", pair)
    return tuple(frames)


def name(pc):
    return gdb.execute("info symbol %d" % (pc - 1), to_string=True).split(" in section")[0].strip()


demangled = {}


def demangle(names):
    """Fills in `demangled` for names of Swift, with one process for all of them."""
    new = [name for name in set(names) if name.startswith("$s") and name not in demangled]
    if not new:
        return
    lines = []
    try:
        # A symbol may be followed by an offset, which stays.
        lines = subprocess.run(["swift-demangle", "--compact", "--simplified"], input="\n".join(new) + "\n", text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        pass
    demangled.update(zip(new, lines if len(lines) == len(new) else map(plain, new)))


def plain(name):
    """The names in a mangled one up to its first type, where swift-demangle is not installed."""
    parts, at = [], 2
    if re.search(r"TR(TA)?(\.\d+)?$", name):
        return "thunk"
    while True:
        number = re.compile(r"[A-Za-z]{0,2}?([1-9]\d*)").match(name, at)
        if number is None:
            break
        at = number.end() + int(number.group(1))
        parts.append(name[number.end():at])
    closure = "closure in " if re.search(r"U\d*_(T[A-Z].*)?$", name) else ""
    return closure + ".".join(parts) if parts else name


def shown(name):
    return demangled.get(name, name)


class ShownFrame(FrameDecorator):
    def function(self):
        # Of a symbol without debug information the decorator below gives the address.
        return demangled.get(self.inferior_frame().name()) or super().function()


class Frames:
    """The frame filter: demangled names, and without a thread's own frames while a coroutine is selected."""

    name, priority, enabled = "coroutine", 100, True

    def filter(self, frames):
        if parked.target is not None:
            at = parked.target["rip"]
            frames = itertools.dropwhile(lambda frame: frame.inferior_frame().pc() != at, frames)
        while True:
            some = list(itertools.islice(frames, 32))
            if not some:
                return
            decorated = [ShownFrame(frame) for frame in some]
            demangle(frame.inferior_frame().name() or "" for frame in decorated)
            yield from decorated


frames = Frames()
gdb.frame_filters[frames.name] = frames


def write_stacks(path):
    """Writes stacks into a core of gcore, which gives up a mapping at the first guard: a page that cannot be read."""
    memory = Memory()
    t = Layout(memory)
    count = 0
    with open(path, "r+b") as core:
        head = core.read(64)
        table, = struct.unpack_from("<Q", head, 32)
        size, number = struct.unpack_from("<2H", head, 54)
        core.seek(table)
        parts = [struct.unpack_from("<2I6Q", core.read(size)) for _ in range(number)]
        loads = [(p[3], p[3] + p[5], p[2]) for p in parts if p[0] == 1]
        for base, _, stride, fresh in t.slabs_found:
            inside = [load for load in loads if load[0] < base + fresh * stride and load[1] > base]
            for slot in range(fresh):
                # From its top downwards, until nothing has been used for four pages.
                page, unused = base + (slot + 1) * stride - 4096, 0
                while page >= base + slot * stride and unused < 4:
                    try:
                        data = memory.read(page, 4096)
                    except gdb.MemoryError:
                        break
                    unused = 0 if data.strip(b"\0") else unused + 1
                    for low, high, offset in inside:
                        if unused == 0 and low <= page and page + 4096 <= high:
                            core.seek(offset + page - low)
                            core.write(data)
                            count += 1
                    page -= 4096
    return count


class InfoCoroutines(gdb.Command):
    """List the coroutines that have a stack: number, name, state, launch site."""

    def __init__(self):
        super().__init__("info coroutines", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        lines = [c.line for c in sorted(coroutines(), key=lambda c: c.id)]
        shown = [line for line in lines if argument in line]
        for line in shown:
            print(line)
        print("%d of %d coroutines with a stack" % (len(shown), len(lines)))


class CoroutineCommand(gdb.Command):
    """coroutine N [COMMAND]: select a parked coroutine, or run COMMAND with its frames.
coroutine off: end the selection. coroutine all bt: all parked coroutines, grouped by equal stacks.
coroutine gcore FILE: write a core with the stacks of coroutines, which gcore leaves out."""

    def __init__(self):
        super().__init__("coroutine", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        words = argument.split(None, 1)
        if not words:
            raise gdb.GdbError("coroutine N [command], coroutine all bt, coroutine gcore FILE, coroutine off")
        parked.select(None)
        if words[0] == "off":
            return
        if words[0] == "all":
            return self.all(words[1] if len(words) > 1 else "bt")
        if words[0] == "gcore":
            if len(words) < 2:
                raise gdb.GdbError("coroutine gcore FILE")
            gdb.execute("gcore " + words[1])
            return print("%d pages of stacks written into it" % write_stacks(words[1]))
        if not words[0].isdigit():
            raise gdb.GdbError("coroutine N, where N is a number of `info coroutines`")
        c = next((c for c in coroutines() if c.id == int(words[0])), None)
        if c is None:
            raise gdb.GdbError("no coroutine %s has a stack" % words[0])
        print(c.line)
        if c.stack == 0:
            return self.on_thread(c, words[1] if len(words) > 1 else None)
        if len(words) == 1:
            return parked.select(c.stack)
        # gdb does not unwind from one stack to another, so the command runs once for each.
        for number, stack in enumerate(list(flows(Layout(Memory()), c))):
            if number > 0:
                print("a generator's body, stepped by:")
            parked.select(stack)
            try:
                gdb.execute(words[1])
            finally:
                parked.select(None)

    @staticmethod
    def on_thread(c, command):
        if c.thread is None:
            raise gdb.GdbError("it runs on no thread that is known: `thread apply all bt`")
        selected = gdb.selected_thread()
        c.thread.switch()
        if command is not None:
            try:
                gdb.execute(command)
            finally:
                selected.switch()

    @staticmethod
    def all(command):
        if command != "bt":
            raise gdb.GdbError("coroutine all bt")
        memory, groups, names = Memory(), {}, {}
        t = Layout(memory)
        for c in coroutines():
            if c.stack != 0:
                groups.setdefault((walk(memory, t, c), c.kind), []).append(c)
        for (stack, _), members in sorted(groups.items(), key=lambda group: -len(group[1])):
            print("%d like %s" % (len(members), members[0].line))
            new = [pc for pc in stack if pc not in names]
            symbols = [name(pc).split(" + ")[0] for pc in new]
            demangle(symbols)
            names.update(zip(new, map(shown, symbols)))
            for pc in stack:
                print("    %#x %s" % (pc, names[pc]))


InfoCoroutines()
CoroutineCommand()
