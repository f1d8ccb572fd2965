import CoroutineTesting

@testable import Coroutine

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
    } catch is LeftRunning {
      return output.current!
    }
  }

  /// The dump of the calling coroutine's world.
  static var dump: String { SimulatedWorld.current?.currentDump ?? "" }
}
