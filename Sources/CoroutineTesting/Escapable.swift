/// Calls `body` with a copy of `closure` that may be stored, which nothing uses any more after this returns.
///
/// A coroutine that cannot be cancelled stays parked for ever, in a frame that holds a reference to the closure. That
/// frame never runs again, so the reference is given up here: `withoutActuallyEscaping` would trap.
func withEscapable<R>(
  _ closure: @Sendable () throws -> Void,
  _ body: (@escaping @Sendable () throws -> Void) -> R
) -> R {
  withoutActuallyEscaping(closure) { escapable in
    var stored = Stored(closure: escapable)
    let before = stored.references
    let result = body(escapable)
    for _ in 0..<max(0, stored.references - before) { Unmanaged<AnyObject>.fromOpaque(stored.context).release() }
    return result
  }
}

/// A closure in memory, as its function and its context.
///
/// Passed as a generic value it would get another context.
private struct Stored {
  let closure: @Sendable () throws -> Void

  // Sound because the context of an escapable copy is an object.
  var context: UnsafeRawPointer {
    mutating get {
      withUnsafePointer(to: &self) {
        UnsafeRawPointer($0).load(fromByteOffset: MemoryLayout<UInt>.size, as: UnsafeRawPointer.self)
      }
    }
  }

  var references: Int {
    mutating get { Int(_getRetainCount(Unmanaged<AnyObject>.fromOpaque(context).takeUnretainedValue())) }
  }
}
