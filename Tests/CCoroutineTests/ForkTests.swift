import CCoroutine
import CCoroutineRuntime
import CTestSupport
import Glibc
import Synchronization
import Testing

// ThreadSanitizer ends a child of many threads.
@Suite("The core after a fork", .enabled(if: !Machine.hasThreadSanitizer))
struct ForkTests {
  @Test("A forked child creates, runs and destroys contexts, whatever the parent's other threads did with the pool")
  func pool() async {
    await #expect(processExitsWith: .success) {
      precondition(contextsWork())
      let others = (0..<3).map { _ in startThread(keepPoolBusy) }
      while busyThreads.load(ordering: .relaxed) < 3 { sched_yield() }
      for round in 0..<200 {
        let answer = cts_in_child(120, { _ in contextsWork() ? 0 : 1 }, nil)
        #expect(answer == 0, "round \(round)")
        if answer != 0 { break }
      }
      poolMayRest.store(true, ordering: .relaxed)
      for thread in others { pthread_join(thread, nil) }
    }
  }

  @Test("A child that is forked during another thread's first use may begin, or is refused")
  func firstUse() async {
    await #expect(processExitsWith: .success) {
      // What a child uses is made before, every global too. Swift's runtime makes one under a lock that holds the
      // number of its thread, and the thread that has forked still has its number of the parent: another thread that
      // needs the lock waits for ever.
      precondition(contextsWork() && !hasBegun.load(ordering: .relaxed))
      precondition(!mayBegin.load(ordering: .relaxed) && !isWaiting.load(ordering: .relaxed))
      // Each round in a child that has not used the runtime.
      for round in 0..<200 {
        pauses.store(round * 20, ordering: .relaxed)
        let answer = cts_in_child(300, { _ in forkDuringFirstUse() ? 0 : 1 }, nil)
        #expect(answer == 0, "round \(round)")
        if answer != 0 { break }
      }
    }
  }

  @Test("A forked child knows that it is one, and can read the report")
  func facts() async {
    await #expect(processExitsWith: .success) {
      _ = cco_report()
      #expect(cco_runtime.forked == 0)
      let answer = cts_in_child(
        120,
        { _ in cco_runtime.forked == 1 && cco_layer().pointee.carrier == nil && strlen(cco_report()) > 0 ? 0 : 1 },
        nil
      )
      #expect(answer == 0)
      #expect(cco_runtime.forked == 0)
    }
  }
}

private let mayBegin = Atomic<Bool>(false)
private let isWaiting = Atomic<Bool>(false)
private let pauses = Atomic<Int>(0)
private let hasBegun = Atomic<Bool>(false)

/// Forks while another thread makes the first use of this process, after some pauses.
///
/// The child has seen nothing of that use, and may begin, or it is refused for ever.
private func forkDuringFirstUse() -> Bool {
  let thread = startThread {
    isWaiting.store(true, ordering: .releasing)
    while !mayBegin.load(ordering: .acquiring) { cco_relax() }
    // About as long as a fork takes, or less.
    for _ in 0..<pauses.load(ordering: .relaxed) { cco_relax() }
    precondition(cco_begin_use(CCO_USES_THREADS))
    hasBegun.store(true, ordering: .releasing)
  }
  while !isWaiting.load(ordering: .acquiring) { cco_relax() }
  mayBegin.store(true, ordering: .releasing)
  let answer = cts_in_child(
    120,
    { _ in
      let mayUse = cco_forked() == CCO_FORKED_UNUSED
      if mayUse ? hasBegun.load(ordering: .acquiring) : cco_forked() != CCO_FORKED_USED { return 1 }
      if cco_uses(CCO_USES_THREADS) || cco_begin_use(CCO_USES_THREADS) != mayUse { return 2 }
      return cco_uses(CCO_USES_THREADS) == mayUse && contextsWork() ? 0 : 3
    },
    nil
  )
  pthread_join(thread, nil)
  return answer == 0 && cco_uses(CCO_USES_THREADS)
}

private let poolMayRest = Atomic<Bool>(false)
private let busyThreads = Atomic<Int>(0)

/// Takes the pool's lock in both ways: for a stack that is taken and given back, and to trim.
private func keepPoolBusy() throws {
  busyThreads.add(1, ordering: .relaxed)
  while !poolMayRest.load(ordering: .relaxed) {
    for _ in 0..<50 { try Fiber { _ in }.destroy() }
    cco_trim(0)
  }
}

/// Creates contexts, steps them and destroys them.
private func contextsWork() -> Bool {
  for _ in 0..<3 {
    var sum = 0
    guard
      let fiber = try? Fiber({ fiber in
        for value in 1...3 { fiber.suspend(value) }
      })
    else { return false }
    while let value = try? fiber.resume(), fiber.state != CCO_FINISHED { sum += value }
    guard sum == 6, (try? fiber.destroy()) != nil else { return false }
  }
  return cco_stacks().peak > 0
}
