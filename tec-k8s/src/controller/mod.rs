//! What an operator does, as futures that a program drives.
