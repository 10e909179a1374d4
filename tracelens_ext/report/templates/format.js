"use strict";
// Numbers as the rows that stand in the page show them.

function grouped(digits) {
  const [whole, fraction] = digits.split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction === undefined ? spaced : `${spaced}.${fraction}`;
}

/** Digits of a number, halves rounded to the even digit as Python does (`toFixed` rounds them up). */
function fixed(value, decimals) {
  const size = Math.abs(value);
  const scaled = size * 10 ** decimals;
  // Exactly between two numbers only if the binary digits end early enough.
  const isHalf = scaled % 1 === 0.5 && Number.isInteger(size * 2 ** (decimals + 1));
  const even = 2 * Math.round(scaled / 2);
  const digits = (isHalf ? even / 10 ** decimals : size).toFixed(decimals);
  return (value < 0 ? "-" : "") + (digits.includes("e") ? digits : grouped(digits));
}

function shownNumber(value, column) {
  if (typeof value === "string") return value; // an infinity, or more digits than a double has
  const sign = column.signed && value >= 0 ? "+" : "";
  if (column.style === "identifier") {
    return String(Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  }
  if (column.style === "percent") {
    if (!column.signed && value > 0 && value < 0.05) return "<0.1%";
    return `${sign}${fixed(value, 1).replaceAll(",", "")}%`;
  }
  return sign + fixed(value, column.decimals);
}

function shownCount(count) {
  return grouped(String(count));
}
