import Coroutine
import Dispatch
import Testing

private enum Request {
  @TaskLocal static var user = -1
  @TaskLocal static var step = -1
}

@Suite("Stress: task-locals", .timeLimit(.minutes(10)))
struct TaskLocalStressTests {
  @Test func `a thousand coroutines with a task-local each, on migrating threads, never see another's`() async throws {
    let stress = Stress()
    let steps = stress.rounds(100)
    let queues = queues(6)
    let jobs = (0..<1_000).map { user in
      co_launch(on: queues[user % 6]) {
        var random = stress.random(user)
        return try Request.$user.withValue(user) {
          var strangers = 0
          for step in 0..<steps {
            try Request.$step.withValue(step) {
              switch Int.random(in: 0..<8, using: &random) {
              case 0..<4: try co_switch(to: queues[Int.random(in: 0..<6, using: &random)])
              case 4: try co_delay(.microseconds(50))
              case 5: try co_launch { try co_yield() }.join()
              default: try co_yield()
              }
              if Request.user != user || Request.step != step { strangers += 1 }
            }
            if Request.user != user || Request.step != -1 { strangers += 1 }
          }
          return strangers
        }
      }
    }
    for job in jobs { #expect(try await job.value == 0, "\(stress.replay)") }
    for queue in queues {
      let seen = Promise<Int>()
      queue.async { seen.fulfill(Request.user) }
      #expect(try await co_launch { try co_await(seen) }.value == -1, "\(stress.replay)")
    }
  }

  @Test func `on the shared scheduler, whose workers steal coroutines, no coroutine sees another's task-local`()
    async throws
  {
    let stress = Stress()
    let steps = stress.rounds(200)
    let local = CoroutineLocal(default: -1)
    let jobs = (0..<500).map { user in
      co_launch {
        try local.withValue(user) {
          try Request.$user.withValue(user) {
            var strangers = 0
            for _ in 0..<steps {
              try co_yield()
              if Request.user != user || local.value != user { strangers += 1 }
            }
            return strangers
          }
        }
      }
    }
    for job in jobs { #expect(try await job.value == 0, "\(stress.replay)") }
  }
}
