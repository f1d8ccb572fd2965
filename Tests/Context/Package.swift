// swift-tools-version:6.3
import PackageDescription

// What other packages see in coroutines: loggers and tracers their context, a package that starts processes a signal
// mask. A package of its own, so that the library's tests fetch nothing.
let package = Package(
  name: "context",
  dependencies: [
    // The name is given because the folder may be called anything.
    .package(name: "coroutine", path: "../.."),
    .package(url: "https://github.com/apple/swift-log", from: "1.6.0"),
    .package(url: "https://github.com/apple/swift-service-context", from: "1.2.0"),
    .package(url: "https://github.com/swiftlang/swift-subprocess", from: "1.0.2", traits: []),
  ],
  targets: [
    .testTarget(
      name: "ContextTests",
      dependencies: [
        .product(name: "Coroutine", package: "coroutine"),
        .product(name: "Logging", package: "swift-log"),
        .product(name: "ServiceContextModule", package: "swift-service-context"),
      ]
    ),
    .testTarget(
      name: "ChildrenTests",
      dependencies: [
        .product(name: "Coroutine", package: "coroutine"),
        .product(name: "Subprocess", package: "swift-subprocess"),
      ]
    ),
  ],
  swiftLanguageModes: [.v6]
)
