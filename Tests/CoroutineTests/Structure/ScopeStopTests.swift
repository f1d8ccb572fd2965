import Dispatch
import Testing

@testable import Coroutine

@Suite(.timeLimit(.minutes(10)))
struct ScopeStopTests {
  @Test func `a stop tells the children, and nobody else`() async throws {
    let stops = try await co_launch { () -> [Bool] in
      let stranger = co_launch { co_isStopping }
      return try co_scope { scope in
        let child = scope.launch {
          try co_await(co_stopping)
          return co_isStopping
        }
        scope.stop(within: .seconds(100))
        return [try child.join(), co_isStopping, try stranger.join(), co_stopping.isTold]
      }
    }
    .value
    #expect(stops == [true, false, false, false])
  }

  @Test func `a stop reaches the coroutines of scopes inside, whether they wait for it or are launched later`()
    async throws
  {
    let answers = try await co_launch { () -> [Bool] in
      try co_scope { outer in
        let middle = outer.launch {
          try co_scope { inner in
            let waiting = inner.launch {
              try co_await(co_stopping)
              return co_isStopping
            }
            let first = try waiting.join()
            let late = inner.launch { co_isStopping && co_stopping.isTold }
            return [first, try late.join(), co_isStopping]
          }
        }
        while !middle.record.seemsWaiting { try co_yield() }
        outer.stop(within: .seconds(100))
        return try middle.join()
      }
    }
    .value
    #expect(answers == [true, true, true])
  }

  @Test(.inWorlds) func `children that do not finish in time are cancelled`() throws {
    // The cancellation ends the waits of the scope's body as well, so the child is joined after the scope.
    let child = try co_scope { scope in
      scope.stop(within: .milliseconds(20))
      return scope.launch { () -> Bool in
        do { try co_delay(.seconds(100)) } catch { return co_isStopping && co_isCancelled }
        return false
      }
    }
    #expect(try child.join())
    #expect(worldTime == .milliseconds(20))
  }

  @Test(.inWorlds) func `children that finish in time are not cancelled`() throws {
    let child = try co_scope { scope in
      scope.stop(within: .milliseconds(20))
      return scope.launch { () -> Bool in
        try co_delay(.nanoseconds(19_999_999))
        return co_isStopping && !co_isCancelled
      }
    }
    #expect(try child.join())
    #expect(worldTime == .nanoseconds(19_999_999))
  }

  @Test(.inWorlds) func `with no time to finish, a stop cancels at once`() throws {
    try co_scope { scope in
      scope.launch { try? co_delay(.seconds(100)) }
      scope.stop(within: .zero)
    }
    #expect(worldTime == .zero)
  }

  @Test(.inWorlds) func `the shortest of several stops counts`() throws {
    try co_scope { scope in
      scope.launch { try? co_delay(.seconds(100)) }
      scope.stop(within: .seconds(200))
      scope.stop(within: .milliseconds(1))
      scope.stop(within: .seconds(300))
    }
    #expect(worldTime == .milliseconds(1))
  }

  @Test func `a scope that ends before the time leaves nothing behind`() async throws {
    try await onSerialQueue {
      try co_scope { scope in
        scope.launch { try co_await(co_stopping) }
        scope.stop(within: .seconds(1_000))
      }
      // The coroutine that would cancel ends by itself, soon.
      while dumpOfOwnQueue().contains("Scope.stop") { try co_yield() }
    }
  }

  @Test(.inWorlds) func `a stop after the scope's end does nothing, and leaves nothing behind`() throws {
    let (scope, signal) = try co_scope { scope in
      (scope, try scope.launch { co_stopping }.join())
    }
    // A coroutine that waited to cancel the scope would be left running at the world's end.
    scope.stop(within: .seconds(100))
    scope.stop(within: .zero)
    try settleWorld()
    #expect(!co_isStopping && !co_isCancelled)
    #expect(worldTime == .zero)
    withExtendedLifetime(signal) {}
  }

  @Test func `a select waits for the stop or for something else`() async throws {
    let heard = try await co_launch { () -> String in
      try co_scope { scope in
        let messages = Channel<String>(.rendezvous)
        let child = scope.launch { () -> String in
          var last = ""
          var isOver = false
          while !isOver {
            try co_select {
              messages.onReceive { last = $0 ?? "closed" }
              co_stopping.onAwait { _ in isOver = true }
            }
          }
          return last
        }
        try messages.send("one")
        try messages.send("two")
        scope.stop(within: .seconds(100))
        return try child.join()
      }
    }
    .value
    #expect(heard == "two")
  }

  @Test func `outside of a scope nobody is told`() async throws {
    #expect(!co_isStopping)
    #expect(!co_stopping.isTold)
    let signal = try await co_launch { co_stopping }.value
    #expect(signal === StopSignal.never)
  }

  @Test func `stops against ends and new signals of many scopes leave no waiter behind`() async throws {
    for round in 0..<300 {
      let queues = (0..<2).map { DispatchQueue(label: "stop \($0)") }
      let told = try await co_launch(on: queues[0]) { () -> Int in
        try co_scope { scope in
          let children = (0..<8).map { index in
            scope.launch(on: queues[index % 2]) {
              try co_scope { inner in
                let grandchild = inner.launch(on: queues[(index + round) % 2]) {
                  if index % 3 == 0 { try co_yield() }
                  try co_await(co_stopping)
                }
                try grandchild.join()
                return co_isStopping ? 1 : 0
              }
            }
          }
          if round % 2 == 0 { try co_yield() }
          scope.stop(within: .seconds(100))
          return try children.map { try $0.join() }.reduce(0, +)
        }
      }
      .value
      #expect(told == 8)
    }
  }
}
