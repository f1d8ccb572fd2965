import CCoroutine
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
        let answer = cts_in_child(20, { _ in contextsWork() ? 0 : 1 }, nil)
        #expect(answer == 0, "round \(round)")
        if answer != 0 { break }
      }
      poolMayRest.store(true, ordering: .relaxed)
      for thread in others { pthread_join(thread, nil) }
    }
  }

  @Test("A forked child knows that it is one, and can read the report")
  func facts() async {
    await #expect(processExitsWith: .success) {
      _ = cco_report()
      #expect(cco_facts.forked == 0)
      let answer = cts_in_child(
        20,
        { _ in cco_facts.forked == 1 && cco_thread().pointee.carrier == nil && strlen(cco_report()) > 0 ? 0 : 1 },
        nil
      )
      #expect(answer == 0)
      #expect(cco_facts.forked == 0)
    }
  }
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
