/// Calls `body` with a copy of `closure` that may be stored, and that nothing calls after this function returns.
///
/// A coroutine that cannot be cancelled stays parked for ever, in a frame that holds a reference to the closure. The
/// frame never runs again, so this function releases that reference. Otherwise `withoutActuallyEscaping` would trap.
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

/// Calls `body` with a copy of an asynchronous `closure` that may be stored, and that nothing calls afterwards.
///
/// A thread that `body` waits for must have released its own reference before `body` returns: a reference that it
/// releases later would be released twice.
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

// A closure in memory consists of a function and a context. A closure that is passed as a generic value is wrapped in
// another context. So each type of closure has its own structure.
private struct Stored { let closure: @Sendable () throws -> Void }
private struct StoredAsync { let closure: @Sendable @concurrent () async throws -> Void }

// Sound because the context of an escapable copy is an object.
private func contextOfClosure<Holder>(in stored: inout Holder) -> UnsafeRawPointer {
  withUnsafeBytes(of: &stored) { $0.load(fromByteOffset: MemoryLayout<UInt>.size, as: UnsafeRawPointer.self) }
}

private func references(to context: UnsafeRawPointer) -> Int {
  Int(_getRetainCount(Unmanaged<AnyObject>.fromOpaque(context).takeUnretainedValue()))
}
