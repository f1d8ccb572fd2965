import CoroutineTesting
import Testing

@testable import Coroutine

// Tests about time run in worlds: `@Test(.inWorlds)`. There, an hour passes at once, a duration is exact to the
// nanosecond, and each seed is another order of what can run at the same time.

extension SimulatedTrait {
  /// The number of seeds of a test that does not say otherwise.
  static var seeds: Int { 30 }
}

extension Trait where Self == SimulatedTrait {
  /// Runs the body of a test in a coroutine of a world, once for each of `SimulatedTrait.seeds` seeds.
  static var inWorlds: Self { .simulated(.random(seeds: SimulatedTrait.seeds)) }

  /// Runs the body of a test once, in a coroutine of a world of first in, first out: for tests of that order.
  static var inOneWorld: Self { .simulated(.inOrder) }
}

/// The time of the calling coroutine's world, since its beginning.
var worldTime: Duration { World.current!.now }

/// Lets everything in the calling coroutine's world run that can run without time passing.
func settleWorld() throws { try World.current!.settle() }

/// Runs `body` in a coroutine on a fresh serial queue of the calling coroutine's world.
///
/// All that it launches shares the queue: coroutines start in the order of their launches.
func onWorldQueue<Output: Sendable>(_ body: sending @escaping () throws -> Output) throws -> Output {
  try co_launch(on: taggedQueue("serial"), body).join()
}

/// A world for tests that leave coroutines behind, which the world then cancels.
final class Simulation: Sendable {
  private let world: World

  init(seed: UInt64? = nil) { world = World(seed: seed) }

  /// Nanoseconds since the beginning.
  var now: UInt64 { UInt64(world.now.nanoseconds) }

  func run<Output: Sendable>(_ body: @escaping @Sendable () throws -> Output) throws -> Output {
    let output = Locked<Output?>(nil)
    do {
      return try world.run {
        let value = try body()
        output.current = value
        return value
      }
    } catch is World.LeftRunningError {
      return output.current!
    }
  }

  /// The dump of the calling coroutine's world.
  static var dump: String { SimulatedWorld.current?.currentDump ?? "" }
}
