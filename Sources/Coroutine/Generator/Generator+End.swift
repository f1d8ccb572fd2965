internal import CCoroutine
import Synchronization

// Raising, closing, dropping: how a body is made to end, and what is left of it. Two rules: a stack with live frames is never
// freed, it is resumed with an error first; and nothing waits while a last reference is being released.

extension GeneratorRecord {
  /// A body that swallows GeneratorClosed and yields again gets it again, so often; then it is a programming error.
  static var mostClosings: Int { 100 }

  /// Keeps what the body has thrown.
  @usableFromInline
  static func fail(_ record: GeneratorRef, _ error: any Error) {
    let isClosing = record.pointee.closings > 0
    if isClosing && (ClosingError.isSame(as: error) || error is GeneratorClosed) {
      record.pointee.ending = .closed
    } else {
      record.pointee.ending = .failed
      record.pointee.failure = error
    }
  }

  /// What a step throws of one that has ended otherwise than by returning.
  @usableFromInline @inline(never)
  static func error(of record: GeneratorRef) -> any Error {
    record.pointee.isObserved = true
    return record.pointee.failure ?? GeneratorClosed()
  }

  /// The claim for `throw` and `close`: true where there is a pending yield; a fresh one ends here with `error`.
  private static func claimToEnd(_ root: GeneratorRef, _ error: (any Error)?) throws -> Bool {
    if root.pointee.claim.compareExchange(
      expected: GeneratorState.parked,
      desired: GeneratorState.running,
      ordering: .acquiring
    ).exchanged {
      return true
    }
    if try claimFresh(root) {
      root.pointee.ending = error == nil ? .closed : .failed
      root.pointee.failure = error
      finish(root)
    }
    return false
  }

  /// Raises `error` at the pending yield; the element's address as in `resume`.
  ///
  /// Off a pending yield `error` is thrown here.
  @usableFromInline @inline(never)
  static func raise(_ root: GeneratorRef, _ error: any Error) throws -> UnsafeMutableRawPointer? {
    guard try claimToEnd(root, error) else {
      root.pointee.isObserved = true
      throw error
    }
    root.pointee.active.unsafelyUnwrapped.pointee.raised = error
    return drive(root, message(GeneratorMessage.raise))
  }

  /// Ends it, whatever state it is in.
  @usableFromInline @inline(never)
  static func close(_ root: GeneratorRef) {
    do {
      guard try claimToEnd(root, nil) else { return }
    } catch {
      refuseClosing()
    }
    unwind(root)
  }

  /// Raises GeneratorClosed until the body has ended.
  ///
  /// The caller holds the claim of a parked one.
  private static func unwind(_ root: GeneratorRef) {
    var word = GeneratorMessage.raise
    repeat {
      let active = root.pointee.active.unsafelyUnwrapped
      active.pointee.closings += 1
      if active.pointee.closings > mostClosings { refuseSwallowing("GeneratorClosed") }
      active.pointee.raised = ClosingError.value
      // An element that it gives all the same is refused, and so destroyed by the body's side.
      let answer = drive(root, message(word))
      word = GeneratorMessage.refuse
      if answer == nil { return }
    } while true
  }

  /// The last reference is gone.
  ///
  /// The body's cleanup must not suspend here: a release is no place where a job expects to.
  @usableFromInline @inline(never)
  static func tearDown(_ record: GeneratorRef) {
    // Nobody else can have the claim any more, so it is not fought for.
    if record.pointee.claim.load(ordering: .acquiring) == GeneratorState.parked {
      record.pointee.claim.store(GeneratorState.running, ordering: .relaxed)
      let carrier = Carrier.current
      let job = carrier?.pointee.job
      carrier?.pointee.job = nil
      unwind(record)
      carrier?.pointee.job = job
    }
    if let result = record.pointee.result { record.pointee.freeResult.unsafelyUnwrapped(result) }
    if let failure = record.pointee.failure, !record.pointee.isObserved, !(failure is CancellationError) {
      CoroutineRuntime.onUnhandledError(failure, "a generator made at \(record.pointee.label.launchSite.description)")
    }
  }
}

/// Where the box of an error lies: what tells one from another that is alike.
///
/// The cast keeps generic code from opening it.
// Sound because an error is one pointer on this platform, of which only the value is used.
func addressOfBox(_ error: any Error) -> UInt { unsafeBitCast(error as any Error, to: UInt.self) }

/// The GeneratorClosed that close raises: one for the whole process.
///
/// Recognised by its address, without a cast, which takes 50 ns. The address is kept in a word, because a look at a Swift
/// global that is made lazily is two calls.
enum ClosingError {
  private static let error: any Error = GeneratorClosed()
  /// Its address; zero until it is first needed.
  private static let word = Atomic<UInt>(0)

  static var value: any Error {
    let known = word.load(ordering: .acquiring)
    // Sound because an error is one pointer, and this one lives for ever.
    return known != 0 ? unsafeBitCast(known, to: (any Error).self) : make()
  }

  static func isSame(as other: any Error) -> Bool { addressOfBox(other) == word.load(ordering: .relaxed) }

  @inline(never)
  private static func make() -> any Error {
    word.store(addressOfBox(error), ordering: .releasing)
    return error
  }
}
