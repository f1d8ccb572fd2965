import Coroutine
import Testing

@Suite("Types that may grow")
struct GrowingTypesTests {
  static let causes: [CoroutineError] = [
    .notInCoroutine, .insideTask, .abandoned, .invalidCallback, .wouldDeadlock, .cycle, .alreadyRunning,
    .yieldInsideScope, .badDescriptor, .cannotWatch, .stackTooLarge, .outOfStacks,
    .invalidCount, .cannotPin,
  ]

  @Test func `a cause of a CoroutineError matches itself, and no other`() {
    for (number, cause) in Self.causes.enumerated() {
      let error: any Error = cause
      let matches = Self.causes.indices.filter { Self.causes[$0] ~= error }
      #expect(matches == [number])
      #expect(Self.causes.indices.filter { Self.causes[$0] == cause } == [number])
      #expect(!(cause ~= CancellationError()))
    }
  }

  @Test func `a pattern matches in every place, whatever the details are`() throws {
    let error: any Error = CoroutineError.wouldDeadlock(because: .init("of a rule"))
    do { throw error } catch CoroutineError.cycle { Issue.record("not this one") } catch CoroutineError.wouldDeadlock {}
    let result = Result<Int, any Error>.failure(CoroutineError.stackTooLarge(1 << 30))
    guard case .failure(CoroutineError.stackTooLarge) = result else { throw error }
    guard case .failure(CoroutineError.stackTooLarge(1 << 30)) = result else { throw error }
    let failure: (any Error)? = CoroutineError.outOfStacks("of memory")
    guard case CoroutineError.outOfStacks? = failure, case .outOfStacks? = failure as? CoroutineError else {
      throw error
    }
    switch CoroutineError.cannotWatch(28) {
    case .abandoned, .cannotPin: throw error
    case .cannotWatch: break
    default: throw error
    }
  }

  @Test func `the details of a CoroutineError can be read`() {
    #expect(CoroutineError.wouldDeadlock(because: .init("of a rule")).reason == "of a rule")
    #expect(CoroutineError.outOfStacks("of memory").reason == "of memory")
    #expect(CoroutineError.stackTooLarge(1 << 30).number == 1 << 30)
    #expect(CoroutineError.cannotWatch(28).number == 28 && CoroutineError.invalidCount(-1).number == -1)
    #expect(CoroutineError.abandoned.number == 0 && CoroutineError.abandoned.reason.isEmpty)
    #expect(Channel<Int>.Capacity.bounded(3).limit == 3 && Channel<Int>.Capacity.dropOldest(3).limit == 3)
    #expect(Channel<Int>.Capacity.rendezvous.waits && !Channel<Int>.Capacity.unbounded.waits)
    #expect(!Channel<Int>.Capacity.dropNewest(1).waits)
  }

  // These are read at each launch.
  @Test func `each option of a launch fits into a register`() {
    #expect(MemoryLayout<StackSize>.size == MemoryLayout<Int>.size && _isPOD(StackSize.self))
    #expect(MemoryLayout<StartMode>.size == 1 && _isPOD(StartMode.self))
  }
}
