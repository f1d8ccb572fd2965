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
    let before = references(to: contextOfClosure(in: &stored))
    let result = body(escapable)
    let context = contextOfClosure(in: &stored)
    for _ in 0..<max(0, references(to: context) - before) { Unmanaged<AnyObject>.fromOpaque(context).release() }
    return result
  }
}

/// As above, for an asynchronous closure.
func withEscapable<R: Sendable>(
  _ closure: @Sendable @concurrent () async throws -> Void,
  _ body: @Sendable (@escaping @Sendable @concurrent () async throws -> Void) async -> R
) async -> R {
  await withoutActuallyEscaping(closure) { escapable in
    var stored = StoredAsync(closure: escapable)
    let before = references(to: contextOfClosure(in: &stored))
    let result = await body(escapable)
    let context = contextOfClosure(in: &stored)
    for _ in 0..<max(0, references(to: context) - before) { Unmanaged<AnyObject>.fromOpaque(context).release() }
    return result
  }
}

// A closure in memory is its function and its context. Passed as a generic value it would get another context, so there
// is a structure for each type.
private struct Stored { let closure: @Sendable () throws -> Void }
private struct StoredAsync { let closure: @Sendable @concurrent () async throws -> Void }

// Sound because the context of an escapable copy is an object.
private func contextOfClosure<Holder>(in stored: inout Holder) -> UnsafeRawPointer {
  withUnsafeBytes(of: &stored) { $0.load(fromByteOffset: MemoryLayout<UInt>.size, as: UnsafeRawPointer.self) }
}

private func references(to context: UnsafeRawPointer) -> Int {
  Int(_getRetainCount(Unmanaged<AnyObject>.fromOpaque(context).takeUnretainedValue()))
}
