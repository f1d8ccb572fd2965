internal import CLinux
import Coroutine
import Glibc
import Synchronization

/// The file of a bound Unix socket, which outlives the socket unless it is removed.
///
/// It removes two kinds of files only:
/// - before the bind, a socket that no process has open, as a crash leaves it;
/// - after the close, the file that the bind created.
///
/// A regular file is never removed.
///
/// Two processes may find the same stale socket: after one has replaced it, the other must not remove the new one. So
/// the check, the removal and the bind are one step, under a lock of the directory (flock), which all users of this
/// class take. Another program that binds to the path does not take it. Its socket is removed only if it is bound
/// between the comparison of the file's identity and the removal, which follow each other directly.
final class UnixPath: Sendable {
  /// The path from the root: the working directory may be another one when the file is removed.
  private let path: String
  private let address: SocketAddress
  /// The inode of the file after the bind; 0 before the bind and after the removal.
  private let inode = Atomic<UInt64>(0)
  /// The process that has bound the file.
  ///
  /// A forked child has a copy of this object and of the socket; the file belongs to the process that made it.
  private let owner = Atomic<pid_t>(0)

  init?(_ address: SocketAddress, unlinks: Bool) {
    guard unlinks, case .unix(let bytes) = address.storage, let first = bytes.first, first != 0 else { return nil }
    path = Self.absolute(String(decoding: bytes, as: UTF8.self))
    self.address = address
  }

  /// The path from the root; the path itself if the working directory has none.
  private static func absolute(_ path: String) -> String {
    guard !path.hasPrefix("/"), let folder = getcwd(nil, 0) else { return path }
    defer { free(folder) }
    // The kernel writes "(unreachable)" in front of a directory outside of the process's root.
    let text = String(cString: folder)
    return text.hasPrefix("/") ? "\(text)/\(path)" : path
  }

  private func socketInode() -> UInt64? {
    var status = stat()
    guard lstat(path, &status) == 0, status.st_mode & S_IFMT == S_IFSOCK else { return nil }
    return UInt64(status.st_ino)
  }

  /// Calls `bind` after it has removed the file, if that is a socket that no process has open.
  func replacingStale(_ bind: () -> Int32) -> Int32 {
    // Without the file there is nothing to remove.
    guard socketInode() != nil, let directory = lockedDirectory() else { return bind() }
    defer {
      // A child that another thread has forked meanwhile has the lock as well, and would keep it.
      _ = flock(directory, LOCK_UN)
      close(directory)
    }
    removeIfStale()
    return bind()
  }

  /// Opens and locks the directory of the file; nil if that is not possible.
  ///
  /// The others hold the lock for a few system calls. It does not wait for ever for a program that uses the same lock
  /// for something else: after half a second the file stays, and the bind fails.
  private func lockedDirectory() -> Int32? {
    let end = path.lastIndex(of: "/")
    let folder = end.map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
    let directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard directory >= 0 else { return nil }
    for _ in 0..<500 {
      if flock(directory, LOCK_EX | LOCK_NB) == 0 { return directory }
      usleep(1_000)
    }
    close(directory)
    return nil
  }

  /// Removes the file if it is a socket that no process has open.
  ///
  /// It connects a datagram socket to the path, which an owner of the path does not notice. The kernel refuses the
  /// connection if no process has the socket open, and reports EPROTOTYPE if a stream socket has the path.
  private func removeIfStale() {
    guard let stale = socketInode() else { return }
    let probe = clinux_socket(AF_UNIX, false)
    guard probe >= 0 else { return }
    defer { close(probe) }
    let code = address.withSystem { connect(probe, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno }
    if code == ECONNREFUSED, socketInode() == stale { unlink(path) }
  }

  /// Stores the inode of the file that the bind has created.
  func remember() {
    owner.store(getpid(), ordering: .relaxed)
    inode.store(socketInode() ?? 0, ordering: .relaxed)
  }

  /// Removes the file, once, if it is still the file that the bind created.
  func remove() {
    let mine = inode.exchange(0, ordering: .relaxed)
    guard mine != 0, owner.load(ordering: .relaxed) == getpid(), socketInode() == mine else { return }
    unlink(path)
  }
}
