import Coroutine
import CoroutineTesting
import Harness

/// Bodies of worlds, and what their runs must show.
enum Bodies {
  /// Lets an hour pass, in which `count` coroutines wake by timers at moments of their own.
  static func hour(_ count: Int) throws {
    let world = World()
    try world.run {
      let ended = WaitGroup()
      ended.add(count)
      let each = Duration.seconds(3600) / count
      for number in 1...count {
        co_launch {
          try co_delay(each * number)
          ended.done()
        }
      }
      try ended.join()
    }
    expect(world.now, equals: .seconds(3600), "the world's time")
  }

  struct Lost: Error {}

  private final class Balance: @unchecked Sendable {
    // Sound because a world runs its coroutines on one thread.
    var amount = 0
  }

  /// Two coroutines that each add four times; an update is lost if the other coroutine runs between a read and its
  /// write.
  @Sendable static func race() throws {
    let balance = Balance()
    let jobs = (0..<2).map { _ in
      co_launch {
        for _ in 0..<4 {
          let seen = balance.amount
          co_point()
          balance.amount = seen + 1
          try co_yield()
        }
      }
    }
    for job in jobs { try job.join() }
    if balance.amount != 8 { throw Lost() }
  }

  /// Returns the hash of the choices of one run: channels, a lock, timers, and selects whose choice the seed draws.
  static func fingerprint(_ seed: UInt64) throws -> UInt64 {
    let world = World(seed: seed)
    try world.run {
      let channel = Channel<Int>(2)
      let lock = FairMutex()
      try co_scope { scope in
        for number in 0..<3 {
          scope.launch {
            try lock.withLock { try co_delay(.milliseconds(number)) }
            try channel.send(number)
          }
        }
        for _ in 0..<3 {
          _ = try co_select {
            channel.onReceive { $0 }
            SelectCase.onTimeout(.milliseconds(1)) { Int?.none }
          }
        }
      }
    }
    return world.fingerprint
  }
}
