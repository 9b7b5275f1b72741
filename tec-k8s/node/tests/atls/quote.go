// What the peer knows of documents with quotes: those of an RSA key, over the SHA-256 bank.
package main

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/big"
	"strconv"
)

var vtpmOID = asn1.ObjectIdentifier{1, 3, 9900, 5, 1}

type vtpmDocument struct {
	Attestation struct {
		AkPub  []byte `json:"ak_pub"`
		Quotes []struct {
			Quote  []byte `json:"quote"`
			RawSig []byte `json:"raw_sig"`
			Pcrs   struct {
				Hash int               `json:"hash"`
				Pcrs map[string][]byte `json:"pcrs"`
			} `json:"pcrs"`
		} `json:"quotes"`
	}
	InstanceInfo, UserData []byte
}

// sized takes a TPM2B, and what follows it.
func sized(from []byte) (value, rest []byte) {
	end := 2 + int(binary.BigEndian.Uint16(from))
	return from[2:end], from[end:]
}

// judgeQuote says whether the document's quote is for this key and this nonce.
func judgeQuote(raw, keyHash, nonce []byte) error {
	var found vtpmDocument
	if err := json.Unmarshal(raw, &found); err != nil {
		return err
	}
	if !bytes.Equal(found.UserData, keyHash) || len(found.Attestation.Quotes) != 1 {
		return errors.New("the document is for another key, or has not one quote")
	}
	quote, area := found.Attestation.Quotes[0], found.Attestation.AkPub
	// TPMT_PUBLIC ends with the modulus of 2048 bits; a TPMT_SIGNATURE begins with RSASSA and
	// SHA-256.
	ak := rsa.PublicKey{N: new(big.Int).SetBytes(area[len(area)-256:]), E: 65537}
	hash := sha256.Sum256(quote.Quote)
	if !bytes.HasPrefix(quote.RawSig, []byte{0, 0x14, 0, 0x0b, 1, 0}) {
		return errors.New("the signature has another scheme")
	}
	if err := rsa.VerifyPKCS1v15(&ak, crypto.SHA256, hash[:], quote.RawSig[6:]); err != nil {
		return err
	}
	if !bytes.HasPrefix(quote.Quote, []byte{0xff, 'T', 'C', 'G', 0x80, 0x18}) {
		return errors.New("what was signed is no quote")
	}
	_, rest := sized(quote.Quote[6:])
	extraData, _ := sized(rest)
	inner := sha256.Sum256(append(bytes.Clone(keyHash), nonce...))
	outer := sha256.Sum256(append(bytes.Clone(found.InstanceInfo), inner[:]...))
	var values []byte
	for index := range 24 {
		values = append(values, quote.Pcrs.Pcrs[strconv.Itoa(index)]...)
	}
	digest := sha256.Sum256(values)
	if !bytes.Equal(extraData, outer[:]) || !bytes.HasSuffix(quote.Quote, digest[:]) {
		return errors.New("the quote is for another nonce, or other registers")
	}
	return nil
}
