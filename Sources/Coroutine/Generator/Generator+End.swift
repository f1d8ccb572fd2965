internal import CCoroutine
import Synchronization

// Raising errors, closing, releasing: the ways to make a body end, and its outcome. Two rules hold.
// - A stack with live frames is never freed. It is resumed with an error first.
// - Nothing waits while a last reference is being released.

extension GeneratorRecord {
  /// The number of times that a body may swallow GeneratorClosedError and yield again.
  ///
  /// One more is a programming error.
  static var mostClosings: Int { 100 }

  /// Stores the error that the body has thrown.
  @usableFromInline
  static func fail(_ record: GeneratorRef, _ error: any Error) {
    let isClosing = record.pointee.closings > 0
    if isClosing && (ClosingError.isSame(as: error) || error is GeneratorClosedError) {
      record.pointee.ending = .closed
    } else {
      record.pointee.ending = .failed
      record.pointee.failure = error
    }
  }

  /// Returns the error that a step throws after an end without a return.
  @usableFromInline @inline(never)
  static func error(of record: GeneratorRef) -> any Error {
    record.pointee.isObserved = true
    return record.pointee.failure ?? GeneratorClosedError()
  }

  /// Claims the generator for `throw` or `close`.
  ///
  /// Returns true if there is a pending yield. A fresh generator ends here, with `error`.
  private static func claimToEnd(_ root: GeneratorRef, _ error: (any Error)?) throws -> Bool {
    if claimParked(root) { return true }
    if try claimFresh(root) {
      root.pointee.ending = error == nil ? .closed : .failed
      root.pointee.failure = error
      finish(root)
    }
    return false
  }

  /// Throws `error` at the pending yield, and returns the element's address as `resume` does.
  ///
  /// Without a pending yield, `error` is thrown to the caller.
  @usableFromInline @inline(never)
  static func raise(_ root: GeneratorRef, _ error: any Error) throws -> UnsafeMutableRawPointer? {
    guard try claimToEnd(root, error) else {
      root.pointee.isObserved = true
      throw error
    }
    root.pointee.active.unsafelyUnwrapped.pointee.raised = error
    return drive(root, message(GeneratorMessage.raise))
  }

  /// Ends the generator, whatever state it is in.
  @usableFromInline @inline(never)
  static func close(_ root: GeneratorRef) {
    do {
      guard try claimToEnd(root, nil) else { return }
    } catch {
      refuseClosing()
    }
    unwind(root)
  }

  /// Throws GeneratorClosedError at the pending yield until the body has ended.
  ///
  /// The caller holds the claim of a parked generator.
  private static func unwind(_ root: GeneratorRef) {
    var word = GeneratorMessage.raise
    repeat {
      let active = root.pointee.active.unsafelyUnwrapped
      active.pointee.closings += 1
      if active.pointee.closings > mostClosings { refuseSwallowing("GeneratorClosedError") }
      active.pointee.raised = ClosingError.value
      // If the body yields an element nevertheless, the element is refused, and destroyed on the body's side.
      let answer = drive(root, message(word))
      word = GeneratorMessage.refuse
      if answer == nil { return }
    } while true
  }

  /// Ends the generator when its last reference has been released.
  ///
  /// The body's cleanup must not suspend here: a job does not expect a release to suspend.
  @usableFromInline @inline(never)
  static func tearDown(_ record: GeneratorRef) {
    // No other thread can have the claim any more, so a store is enough.
    if record.pointee.claim.load(ordering: .acquiring) == GeneratorState.parked {
      record.pointee.claim.store(GeneratorState.running, ordering: .relaxed)
      let carrier = Carrier.current
      let job = carrier?.pointee.job
      carrier?.pointee.job = nil
      unwind(record)
      carrier?.pointee.job = job
    }
    // Still there if the body has never run.
    if let locals = record.pointee.locals { Unmanaged<LocalBinding>.fromOpaque(locals).release() }
    if let result = record.pointee.result { record.pointee.freeResult.unsafelyUnwrapped(result) }
    if let failure = record.pointee.failure, !record.pointee.isObserved {
      let launchSite = record.pointee.label.launchSite
      UnhandledErrors.report(.init(failure, in: "a generator made at \(launchSite.description)", at: launchSite))
    }
  }
}

/// Returns the address of an error's box, which distinguishes equal errors.
///
/// The cast prevents generic code from opening the box.
// Sound because an error is one pointer on this platform, and only the pointer's value is used.
func addressOfBox(_ error: any Error) -> UInt { unsafeBitCast(error as any Error, to: UInt.self) }

/// The GeneratorClosedError that close throws: one error for the whole process.
///
/// It is recognised by its address, without a cast, which takes 50 ns. The address is kept in a word, because reading a
/// lazily initialised Swift global takes two calls.
enum ClosingError {
  private static let error: any Error = GeneratorClosedError()
  /// The error's address, or zero until it is first needed.
  private static let word = Atomic<UInt>(0)

  static var value: any Error {
    let known = word.load(ordering: .acquiring)
    // Sound because an error is one pointer, and this error is never released.
    return known != 0 ? unsafeBitCast(known, to: (any Error).self) : make()
  }

  static func isSame(as other: any Error) -> Bool { addressOfBox(other) == word.load(ordering: .relaxed) }

  @inline(never)
  private static func make() -> any Error {
    word.store(addressOfBox(error), ordering: .releasing)
    return error
  }
}
