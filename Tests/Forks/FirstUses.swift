import CCoroutine
import CTestSupport
import Coroutine
import CoroutineNet
import Dispatch
import Glibc

/// Whether `attempt` ends a child of this process by a trap.
func ends(_ attempt: @escaping @Sendable () throws -> Void) -> Bool {
  let child = cts_fork(Step.seconds)
  if child == 0 {
    // A dump of the memory, where the machine makes them, would take long on a slow disk.
    var none = rlimit(rlim_cur: 0, rlim_max: 0)
    setrlimit(__rlimit_resource_t(RLIMIT_CORE.rawValue), &none)
    // What the trap prints is not the test's.
    let nowhere = open("/dev/null", O_WRONLY)
    dup2(nowhere, STDERR_FILENO)
    // Without Swift's backtrace, which may take longer than the alarm.
    for number in [SIGILL, SIGTRAP, SIGABRT] { signal(number, SIG_DFL) }
    try? attempt()
    _exit(0)
  }
  let answer = cts_end_of(child)
  // Not by the alarm.
  return answer < 0 && answer != -SIGALRM && answer != -1_000
}

/// Whether each way to launch, and a wait, ends a child of this process, which is a child of one that used the runtime.
func isRefused() -> Bool {
  let attempts: [@Sendable () throws -> Void] = [
    { try co_launch {}.blockingWait() },
    { try co_launch(on: DispatchQueue(label: "child")) {}.blockingWait() },
    { try co_launch(on: WorkerPoolExecutor.shared) {}.blockingWait() },
    { try co_launch(start: .immediate) {}.blockingWait() },
    { try co_launch(start: .lazy) {}.blockingWait() },
    { try co_delay(.milliseconds(1)) },
  ]
  return attempts.allSatisfy { ends($0) }
}

/// After each of these a child may launch: no thread, timer or queue is left behind.
let notUses = [
  Step("start-up") {
    cco_start()
    return String(cString: cco_report()).contains("stack guards")
  },
  Step("generators") {
    co_sequence(of: Int.self) { yield in for number in 1...4 { try yield(number) } }.reduce(0, +) == 10
  },
  Step("a channel") {
    let channel = Channel<Int>(.bounded(2))
    guard case .sent = channel.trySend(1), case .received(1) = channel.tryReceive() else { return false }
    return true
  },
  Step("a settled promise") { try Promise<Int>.value(1).blockingWait() == 1 },
  Step("locks") {
    let mutex = FairMutex()
    defer { mutex.unlock() }
    return mutex.tryLock()
  },
  Step("a dump and the hooks") {
    CoroutineRuntime.unhandledErrorHandler = { _ in }
    return CoroutineRuntime.dump().contains("coroutine") && CoroutineRuntime.liveCount == 0
  },
  Step("a listener") {
    let listener = try Listener.bind(.loopback(port: 0))
    listener.close()
    return true
  },
  Step("Dispatch without its threads") {
    DispatchQueue(label: "parent").sync {}
    return DispatchSemaphore(value: 0).wait(timeout: .now() + .milliseconds(1)) == .timedOut
  },
]

/// After each of these a child is refused.
let firstUses = [
  Step("launch") { try co_launch { 1 }.blockingWait() == 1 },
  Step("launch on a queue") { try co_launch(on: DispatchQueue(label: "parent")) { 1 }.blockingWait() == 1 },
  Step("launch on the workers") { try co_launch(on: WorkerPoolExecutor.shared) { 1 }.blockingWait() == 1 },
  Step("launch at once") { try co_launch(start: .immediate) { 1 }.blockingWait() == 1 },
  Step("launch later") {
    co_launch(start: .lazy) {}
    return true
  },
  Step("an executor") {
    _ = CoroutineExecutor(DispatchQueue(label: "parent"))
    return true
  },
  Step("a handler") {
    try Promise<Int>.value(1).then { $0 + 1 }.blockingWait() == 2
  },
  Step("a handler on a queue") {
    try Promise<Int>.value(1).then(on: DispatchQueue(label: "parent")) { $0 + 1 }.blockingWait() == 2
  },
  Step("a timer") {
    _ = Promise<Void>.after(.seconds(3_600))
    return true
  },
  Step("a promise for a block of a queue") {
    try Promise<Int>.running(on: DispatchQueue(label: "parent")) { 1 }.blockingWait() == 1
  },
  Step("a promise for a Task") { try Promise<Int>.task { 1 }.blockingWait() == 1 },
  Step("a Swift job") {
    let done = Promise<Int>.pending()
    Task(executorPreference: WorkerPoolExecutor.shared) { done.resolver.resume(1) }
    return try done.promise.blockingWait() == 1
  },
  Step("a signal") {
    CoroutineRuntime.dumpOnSignal()
    return true
  },
  Step("co_signals") {
    _ = co_signals([SIGUSR1])
    return true
  },
  Step("a host") {
    _ = HostedScheduler(Loop())
    return true
  },
  Step("a simulated world") { try inWorld { true } },
]

/// Forks after a step, in a process that has done nothing else.
func forks(after step: Step, _ name: String, _ body: @escaping @Sendable () throws -> Bool) -> Bool {
  Step("after \(step.name)") {
    guard step.run() else { return false }
    // This is about what the runtime knows, and not about locks of others that a fork may find taken.
    while !cts_may_fork() { sched_yield() }
    return Step("after \(step.name): \(name)", body).runInChild()
  }
  .runInChild()
}
