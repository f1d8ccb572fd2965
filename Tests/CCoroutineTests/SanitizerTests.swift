import CCoroutine
import CTestSupport
import Glibc
import Testing

/// An object whose leak is reported.
private final class Kept {
  var bytes = [UInt8](repeating: 1, count: 1000)
}

/// Runs `body` while an object is referred to by the caller's stack alone.
@inline(never)
private func holding(_ body: () throws -> Void) {
  withoutActuallyEscaping(body) { body in
    let object = Unmanaged.passRetained(Kept())
    var call = (body: body, error: (any Error)?.none)
    withUnsafeMutablePointer(to: &call) { call in
      cts_hold(
        object.toOpaque(),
        { argument in
          let call = argument!.assumingMemoryBound(to: (body: () throws -> Void, error: (any Error)?).self)
          do { try call.pointee.body() } catch { call.pointee.error = error }
        },
        call
      )
    }
    object.release()
    if let error = call.error { fatalError("\(error)") }
  }
}

@Suite("Sanitizers")
struct SanitizerTests {
  @Test(
    "What only a parked or a ready context's stack refers to is no leak",
    .enabled(if: Machine.hasAddressSanitizer, "only LeakSanitizer looks for leaks")
  )
  func leaks() async {
    await #expect(processExitsWith: .success) {
      for _ in 0..<50 {
        let parked = try Fiber { fiber in
          let object = Kept()
          fiber.suspend()
          precondition(object.bytes.count == 1000)
        }
        try parked.resume()
        let object = Kept()
        _ = try Fiber { _ in precondition(object.bytes.count == 1000) }
      }
    }
  }

  /// For LeakSanitizer, a thread that runs a context has the context's stack and no other.
  @Test(
    "What only the stack of a running context's resumer refers to is no leak",
    .enabled(if: Machine.hasAddressSanitizer, "only LeakSanitizer looks for leaks")
  )
  func leaksBelow() async {
    await #expect(processExitsWith: .success) {
      typealias Check = @convention(c) () -> CInt
      // Sound because this is the function's type in sanitizer/lsan_interface.h.
      let check = unsafeBitCast(dlsym(nil, "__lsan_do_recoverable_leak_check"), to: Check.self)
      let outer = try Fiber { _ in
        let inner = try? Fiber { _ in precondition(check() == 0, "something is reported as leaked") }
        holding { _ = try? inner?.resume() }
        try? inner?.destroy()
      }
      holding { try outer.resume() }
      try outer.destroy()
    }
  }

  @Test(
    "AddressSanitizer knows which stack is being run on",
    .enabled(if: Machine.hasAddressSanitizer, "there is nobody to ask")
  )
  func currentStack() throws {
    typealias Locate =
      @convention(c) (
        UnsafeMutableRawPointer, UnsafeMutableRawPointer?, Int, UnsafeMutableRawPointer?, UnsafeMutableRawPointer?
      ) -> UnsafePointer<CChar>
    // Sound because this is the function's type in sanitizer/asan_interface.h.
    let locate = unsafeBitCast(try #require(dlsym(nil, "__asan_locate_address")), to: Locate.self)
    func kind(_ address: UnsafeMutableRawPointer) -> String {
      var name = [UInt8](repeating: 0, count: 64)
      var start: UnsafeMutableRawPointer?
      var size = 0
      return String(cString: locate(address, &name, name.count, &start, &size))
    }
    var inside: [String] = []
    var outside: [String] = []
    let fiber = try Fiber { fiber in
      for _ in 0..<3 {
        inside.append(kind(fiber.high - 8))
        fiber.suspend()
      }
    }
    for _ in 0..<3 {
      try fiber.resume()
      outside.append(kind(fiber.high - 8))
    }
    try fiber.resume()
    try fiber.destroy()
    #expect(inside == ["stack", "stack", "stack"])
    #expect(!outside.contains("stack"))
  }

  @Test("Threads that pass a context on need no synchronisation beyond the hand-over")
  func fibers() throws {
    let carousel = Carousel(threads: 2)
    defer { carousel.stop() }
    var total = 0
    for _ in 0..<100 {
      let fiber = try carousel.next {
        try Fiber { fiber in
          for step in 1...10 { total += fiber.suspend(step) }
        }
      }
      for step in 0...10 { _ = try carousel.next { try fiber.resume(step) } }
      try carousel.next { try fiber.destroy() }
    }
    #expect(total == 5500)
  }
}
