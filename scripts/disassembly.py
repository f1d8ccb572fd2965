"""Reads optimised x86-64 code through objdump, and finds out which functions may switch stacks. For scripts/thread-locals.

A function may switch if it contains a jump to cco_jump or jump_fcontext (SWITCHES), an indirect call, or a call of a function
that may. So may a function of another library, unless it is named here (HARMLESS).
"""
import collections
import re
import subprocess
import sys

# Functions that return an address in the calling thread's memory. The compiler knows that most of them always return the same.
SOURCES = {
    "__tls_get_addr", "__emutls_get_address", "__errno_location", "__h_errno_location", "pthread_self", "__ctype_b_loc",
    "__ctype_tolower_loc", "__ctype_toupper_loc", "__cxa_get_globals", "__cxa_get_globals_fast",
}
SWITCHES = {"cco_jump", "jump_fcontext", "_ZN5boost7context6detail13jump_fcontextEPvS2_", "swapcontext", "setcontext"}

# Functions of other libraries that call nothing that could switch. Not here: swift_release, swift_task_localValuePop and their
# kin, which may run a deinit; swift_getAtKeyPath, which runs a getter; swift_dynamicCast, which may do both; swift_once, whose
# initialiser may wait; whatever calls back. Families of names are written out where a program may have functions of its own with
# such a name.
HARMLESS = re.compile(
    r"(?:__)?(?:mem(?:cpy|move|set|cmp|chr|rchr)|str(?:n?len|n?cmp|n?casecmp|n?cpy|n?cat|r?chr|chrnul|str|c?spn|pbrk|n?dup"
    r"|error(?:_r)?|signal|tok_r|to(?:l|ll|ul|ull|d|f))|stpn?cpy|v?s?n?printf|fprintf|f?puts|fputc|fwrite|fflush|perror)(?:_chk)?$"
    r"|(?:malloc|calloc|realloc|free|posix_memalign|aligned_alloc|malloc_usable_size)$"
    r"|(?:syscall|read|readv|write|writev|open|close|pipe2?|dup[23]?|poll|ppoll|ioctl|fcntl)(?:64)?$"
    r"|(?:epoll_(?:create1?|ctl|p?wait2?)|eventfd|timerfd_(?:create|settime|gettime)|pidfd_(?:open|getfd|send_signal))$"
    r"|(?:socket|socketpair|bind|listen|accept4?|connect|shutdown|[gs]etsockopt|get(?:sock|peer)name|inet_ntop)$"
    r"|(?:send|recv)(?:to|from|msg|mmsg)?$|(?:mmap|munmap|mprotect|madvise|mremap|mlock)(?:64)?$|[gs]etrlimit(?:64)?$"
    r"|(?:getpid|gettid|getenv|secure_getenv|sysconf|clock_gettime|nanosleep|usleep|getauxval|prctl|_exit|abort|raise)$"
    r"|sched_(?:yield|getcpu|[gs]etaffinity|[gs]etscheduler|[gs]etparam)$"
    r"|sig(?:emptyset|fillset|addset|delset|action|altstack|procmask|nal|wait|waitinfo|timedwait)$"
    r"|process_(?:madvise|mrelease|vm_readv|vm_writev)$"
    r"|\$s.+Ma$|\$s15Synchronization12_MutexHandleV.*"
    r"|pthread_(?:self|equal|sigmask|mutex_[a-z]+|cond_[a-z]+|rwlock_[a-z]+|spin_[a-z]+|attr_[a-z]+|getattr_np|[gs]etname_np"
    r"|key_create|getspecific|setspecific|create|detach|kill|setcancelstate)$"
    r"|__(?:stack_chk_fail|errno_location|h_errno_location|tls_get_addr|assert_fail|ctype_[a-z_]+|cxa_get_globals(?:_fast)?)$"
    r"|swift_(?:retain|bridgeObjectRetain|nonatomic_retain|tryRetain|unknownObjectRetain|allocObject|slowAlloc|slowDealloc"
    r"|deallocClassInstance|deallocUninitializedObject|initStackObject|initStaticObject|setDeallocating|errorRetain|allocError"
    r"|(?:begin|end)Access|isUniquelyReferenced[A-Za-z_]*|isEscapingClosureAtFileLocation|get(?!At)[A-Za-z0-9]+|unexpectedError|willThrow"
    r"|weak(?:Init|LoadStrong|TakeStrong)|unowned[A-Za-z]*|dynamicCast[A-Z][A-Za-z]*|lookUpClass|checkMetadataState|conformsTo[A-Za-z]*"
    r"|task_getCurrent|compareTypeContextDescriptors|bridgeObjectRetain_n|retain_n|StdlibRandom)$"
    r"|_swift_stdlib_[A-Za-z_]+$|_?\$ss17_assertionFailure.*|_?\$ss18_fatalErrorMessage.*|__asan_[a-z_0-9]+|__tsan_[a-z_0-9]+"
)


PREFIXES = {"data16", "lock", "rep", "repz", "repnz", "notrack", "bnd", "cs", "ds", "es", "addr32", "rex.W", "rex"}


class Function:
    __slots__ = ("name", "file", "section", "start", "lines", "symbols", "offsets", "has_source")

    def __init__(self, name, file, section, start):
        self.name, self.file, self.section, self.start = name, file, section, start
        self.lines = []  # (address, text of the instruction)
        self.symbols = {}  # the number of an instruction: what it refers to, as the linker will read it
        self.offsets = set()
        self.has_source = False  # whether it may take an address of the thread


def disassemble(paths):
    """Yields the functions of some files."""
    command = ["objdump", "--disassemble", "--reloc", "--no-show-raw-insn", *paths]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
    function = file = section = None
    for line in process.stdout:
        if line.startswith(" ") and function is not None:
            address, separator, text = line.partition(":\t")
            if separator:
                function.lines.append((int(address, 16), text.rstrip()))
                if "%fs:0x0" in text or ("call" in text and "@plt>" in text and bare(text.rsplit("<", 1)[1]) in SOURCES):
                    function.has_source = True
        elif line.startswith("\t\t\t") and function is not None and function.lines:
            _, kind, symbol = line.split(None, 2)
            if "TPOFF" in kind:  # a variable's own offset in %fs:0x0(…), which is then no address
                function.offsets.add(len(function.lines) - 1)
            symbol = symbol.strip()
            function.symbols[len(function.lines) - 1] = symbol
            if bare(symbol) in SOURCES:
                function.has_source = True
        elif line.endswith(">:\n"):
            address, _, name = line.partition(" <")
            if function is not None:
                yield function
            function = Function(name[:-3], file, section, int(address, 16))
        elif line.startswith("Disassembly of section"):
            section = line.split()[3].rstrip(":")
        elif ":     file format" in line:
            file = line.partition(":     file format")[0]
    if function is not None:
        yield function
    if process.wait() != 0:
        sys.exit("error: objdump failed")


def bare(symbol):
    """A symbol without its addend and version."""
    return re.sub(r"(?:[-+]0x[0-9a-f]+)?$", "", symbol).split("@")[0]


def parse(text):
    """An instruction's name and operands."""
    text = text.split("#")[0].strip()
    words = text.split(None, 1)
    while words and words[0] in PREFIXES:
        words = words[1].split(None, 1) if len(words) > 1 else []
    if not words:
        return "nop", []
    name = words[0].split(",")[0]  # a branch with a hint: `jne,pn`
    operands, depth, current = [], 0, ""
    for character in words[1].split(" <")[0] if len(words) > 1 else "":
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            operands.append(current.strip())
            current = ""
        else:
            current += character
    if current:
        operands.append(current.strip())
    return name, operands


class Program:
    """All functions of the files, and which of them may switch."""

    def __init__(self, paths):
        self.functions = list(disassemble(paths))
        self.by_name = collections.defaultdict(list)
        self.at = {}  # (file, section, address): the function that begins there
        for function in self.functions:
            self.by_name[function.name].append(function)
            self.at[function.file, function.section, function.start] = function
        self.find_switchers()

    def target(self, function, index):
        """What a direct call or jump goes to: a name, or a function; None where that is inside of `function`, or indirect."""
        text = function.lines[index][1]
        symbol = function.symbols.get(index)
        if symbol is not None and "*" not in text:
            name = bare(symbol)
            if not name.startswith("."):
                return name
            offset = re.search(r"([-+]0x[0-9a-f]+)$", symbol)
            return self.at.get((function.file, name, int(offset.group(1), 16) + 4 if offset else 4), name)
        match = re.search(r"\b([0-9a-f]+) <(.+)>", text)
        if match is None:
            return None
        if function.start <= int(match.group(1), 16) <= function.lines[-1][0] and not text.lstrip().startswith("call"):
            return None
        found = self.at.get((function.file, function.section, int(match.group(1), 16)))
        return found if found is not None else bare(match.group(2))

    def resolve(self, function, target):
        """The functions of the files that a call of `target` in `function` may reach; an empty list for one from elsewhere."""
        if isinstance(target, Function):
            return [target]
        known = self.by_name.get(target, [])
        return [other for other in known if other.file == function.file] or known

    def find_switchers(self):
        self.switchers = set()
        callers = collections.defaultdict(list)
        for function in self.functions:
            for index, (_, text) in enumerate(function.lines):
                if "call" not in text and "jmp" not in text:
                    continue
                name, operands = parse(text)
                if not name.startswith(("call", "jmp")):
                    continue
                if operands and operands[0].startswith("*"):
                    if name.startswith("call") or not is_table(function, index):
                        self.switchers.add(function)
                    continue
                target = self.target(function, index)
                if target is None:
                    continue
                reached = self.resolve(function, target)
                for other in reached:
                    callers[other].append(function)
                if not reached and self.is_foreign_switch(target):
                    self.switchers.add(function)
        pending = list(self.switchers)
        while pending:
            for caller in callers[pending.pop()]:
                if caller not in self.switchers:
                    self.switchers.add(caller)
                    pending.append(caller)

    @staticmethod
    def is_foreign_switch(name):
        return name in SWITCHES or HARMLESS.match(name) is None

    def may_switch(self, function, target):
        reached = self.resolve(function, target)
        return any(other in self.switchers for other in reached) if reached else self.is_foreign_switch(target)


def is_table(function, index):
    """Whether an indirect jump is one through a table of a switch: a sum of the table's address and an entry."""
    _, operands = parse(function.lines[index][1])
    register = operands[0][1:]
    for number in range(index - 1, max(index - 8, -1), -1):
        name, others = parse(function.lines[number][1])
        if others and others[-1] == register:
            return name.startswith("add") or (name.startswith("mov") and ",8)" in others[0])
    return "(,%r" in operands[0]
