import CCoroutine
import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine

private let hasThreadSanitizer = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0

/// An ask whose message has been told, and whose wait is then refused: the reply must not lead to the asker's frame.
// ThreadSanitizer ends a child of many threads.
@Suite("Actors: an ask whose wait is refused", .enabled(if: !hasThreadSanitizer), .timeLimit(.minutes(5)))
struct RefusedAskTests {
  @Test func `in a forked child it throws afterFork, its reply answers nobody, and is released`() async {
    await #expect(processExitsWith: .success) {
      let job = co_launch(on: taggedQueue("forks")) { () -> Int32 in
        // Its queue does not run it, so that a tell in the child needs no thread of the parent.
        let away = taggedQueue("away")
        away.suspend()
        defer { away.resume() }
        let actor = co_actor(of: Reply<Int>.self, on: away) { _ in }
        var (reply, child): (Reply<Int>?, Int32) = (nil, -1)
        while !cts_other_threads_sleep() { sched_yield() }
        let seen = outcome {
          // The parent's asker gives up, because no actor answers.
          try co_timeout(.milliseconds(1)) {
            try actor.ask {
              reply = $0
              child = cts_fork(30)
              return $0
            }
          }
        }
        if child != 0 {
          actor.cancel()
          return seen == "TimeoutError" ? cts_end_of(child) : -1
        }
        weak let cell = reply?.cell
        let facts = [
          seen == "afterFork", reply?.isAwaited == false, actor.core.asks.first == nil,
          {
            // Late: nobody gets it.
            reply?(1)
            reply = nil
            return actor.lateAnswers == 1
          }(),
          cell != nil,
          {
            actor.cancel()
            return cell == nil
          }(),
        ]
        _exit(Int32((facts.firstIndex(of: false) ?? -1) + 1))
      }
      let answer = try synchronously { try job.blockingWait() }
      #expect(answer == 0, "the number of the first fact that is false")
    }
  }
}
