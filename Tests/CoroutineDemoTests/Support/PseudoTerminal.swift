#if Demo
import Foundation

/// A terminal without a screen, for programs that behave differently on one.
struct PseudoTerminal {
  let master: FileHandle
  let slave: FileHandle
  var environment: [String: String]

  init(columns: UInt16, rows: UInt16, environment: [String: String]) throws {
    // The work of posix_openpt, unlockpt and ptsname on Linux, which Swift's module of the C library lacks.
    let unlock: UInt = 0x4004_5431  // TIOCSPTLCK
    let number: UInt = 0x8004_5430  // TIOCGPTN
    let master = try Self.check(open("/dev/ptmx", O_RDWR | O_NOCTTY))
    self.master = FileHandle(fileDescriptor: master, closeOnDealloc: true)
    var locked: Int32 = 0
    try Self.check(ioctl(master, unlock, &locked))
    var index: Int32 = 0
    try Self.check(ioctl(master, number, &index))
    let slave = try Self.check(open("/dev/pts/\(index)", O_RDWR | O_NOCTTY))
    self.slave = FileHandle(fileDescriptor: slave, closeOnDealloc: true)
    var size = winsize(ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0)
    try Self.check(ioctl(slave, UInt(TIOCSWINSZ), &size))
    self.environment = environment
  }

  @discardableResult
  private static func check(_ result: Int32) throws -> Int32 {
    guard result >= 0 else { throw POSIXError(POSIXErrorCode(rawValue: errno) ?? .EIO) }
    return result
  }
}
#endif
