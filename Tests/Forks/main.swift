import CTestSupport
import Coroutine
import CoroutineNet
import Dispatch
import Glibc

// A process that forks before it has used the runtime, and its children. FirstUseTests starts it with the name of one
// part, because the process of a test has used Dispatch and Tasks. The status is 0 if all was as expected. What was not
// is on standard error.

/// All steps, also after one that has failed.
func all(_ results: [Bool]) -> Bool { results.allSatisfy { $0 } }

func run(_ part: String) throws -> Bool {
  // A child inherits what was made and not used up.
  guard case .sent = inherited.trySend(12), generator.next() == 1 else { return false }
  switch part {
  case "uses":
    return all(uses.map { $0.runInChild() })
  case "grandchildren":
    let some = Array(uses.prefix(6))
    let nested = some.map { step in Step("a child that forks: \(step.name)") { step.runInChild() } }
    return all(nested.map { $0.runInChild() })
  case "threads":
    return all(uses.prefix(6).map { step in onThread { step.runInChild() } })
  case "generators":
    // The child continues in the generator's body.
    let forking = co_sequence(of: Bool.self) { yield in try yield(uses[0].runInChild() && uses[1].runInChild()) }
    return forking.next() == true
  case "notUsed":
    return all(notUses.map { forks(after: $0, "a launch") { try co_launch { 1 }.blockingWait() == 1 } })
      && all(
        notUses.map {
          forks(after: $0, "a launch on a queue") {
            try co_launch(on: DispatchQueue(label: "child")) { 1 }.blockingWait() == 1
          }
        }
      )
  case "used":
    return all(firstUses.map { forks(after: $0, "is refused") { isRefused() } })
      && all(
        firstUses.prefix(2).map { step in
          forks(after: step, "a child of it is refused") { Step("grandchild") { isRefused() }.runInChild() }
        }
      )
  case "afterUse":
    // A child that works, then the parent, then a child that is refused; the first child's children are refused, too.
    let child = Step("a child that forks after its use") {
      guard try co_launch({ 1 }).blockingWait() == 1 else { return false }
      while !cts_may_fork() { sched_yield() }
      return Step("its child") { isRefused() }.runInChild()
    }
    guard child.runInChild(), try co_launch({ 1 }).blockingWait() == 1 else { return false }
    while !cts_may_fork() { sched_yield() }
    let late = Step("a late child") { isRefused() }
    guard late.runInChild() else { return false }
    return try co_launch { 1 }.blockingWait() == 1
  case "signals":
    // The thread that takes signals has stayed in the parent; the child's own one does not need the runtime.
    let own = co_signals([SIGUSR1])
    defer { own.close() }
    let child = Step("a refused child takes a signal") {
      let signals = co_signals([SIGHUP])
      kill(getpid(), SIGHUP)
      while true {
        if case .received(let signal) = signals.tryReceive() { return signal == SIGHUP }
        sched_yield()
      }
    }
    return child.runInChild()
  case "initialiser":
    // The child returns into the initialiser, which holds the runtime's lock by the parent's number.
    if Forking.child == 0 {
      exit(try co_launch { 1 }.blockingWait() == 1 ? 0 : 1)
    }
    return cts_end_of(Forking.child) == 0
  case "dispatch":
    useDispatch()
    while !cts_may_fork() { sched_yield() }
    return childOfDispatch.runInChild()
  case "servers":
    var folder = Array("/tmp/coroutine-forks-XXXXXX".utf8CString)
    guard mkdtemp(&folder) != nil else { return false }
    let path = String(decoding: folder.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    defer { rmdir(path) }
    return try serve(.loopback(port: 0), path: nil) && serve(.unix("\(path)/socket"), path: "\(path)/socket")
  case "daemon":
    return becomeDaemon()
  default:
    return false
  }
}

exit(try run(CommandLine.arguments.dropFirst().first ?? "") ? 0 : 1)
