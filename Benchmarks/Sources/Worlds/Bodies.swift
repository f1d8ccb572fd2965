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
      try ended.wait()
    }
    expect(world.now, equals: .seconds(3600), "the world's time")
  }
}
